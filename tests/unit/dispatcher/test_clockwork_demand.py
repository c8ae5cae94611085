"""What `clockwork` keeps instead of searching for it: it follows every change that it depends on."""

import pytest

from dispatcher.state.device_state import DeviceState
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    ExecutionEnded,
    ExecutorLost,
    ExecutorSuspected,
    LoadEnded,
    LoadModel,
    Reject,
    RequestCancelled,
    Result,
    UnloadModel,
)
from roma.domain.model import Priority
from tests.support.clockwork import LOAD, RUNS, SLO, ClockworkHarness, batch, executes, with_device

TIGHT = LOAD + RUNS[1] + 0.005
"""An SLO that a LOAD and a batch of one keep, and little more."""


def offering(harness, name, *, load, **kw):
    """A device that loads models within `load` seconds."""
    models = harness.models
    harness.models = {m: ModelCapabilities(2, load, RUNS) for m in models}
    harness.device(name, **kw)
    harness.models = models


def is_refused(commands):
    return [type(c) for c in commands] == [Reject]


def is_loaded_on(commands):
    """The devices that a command tells to load something."""
    return [c.executor for c in commands if isinstance(c, LoadModel)]


def test_nobody_is_woken_for_a_device_that_has_nothing_more_to_do():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    assert harness.core.next_wakeup() is None
    harness.arrive("a", 0.001)
    assert harness.core.next_wakeup() == pytest.approx(RUNS[1] - 0.005)


def test_nor_for_a_request_that_has_left():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    harness.arrive("a", 0.001, priority=Priority.LOW)
    _, commands = harness.wake()
    assert batch(commands) == (2,)
    assert harness.core.next_wakeup() is None


def test_who_comes_behind_requests_that_are_too_late_for_a_device_is_served_by_it():
    harness = with_device(loaded="ab")
    harness.arrive("b", 0.0)
    for _ in range(16):
        harness.arrive("b", 0.001)
    _, commands = harness.wake()
    assert len(batch(commands)) == 16
    harness.end(1, 0.010)  # and the others at 0.05
    for _ in range(5):
        harness.arrive("a", 0.011, slo=0.045)  # could begin until 0.046, elsewhere
    now, commands = harness.wake()
    assert (now, executes(commands)) == (pytest.approx(0.045), [])
    assert batch(harness.arrive("a", 0.0455)) == (23,)


def test_a_load_that_failed_leaves_no_hope_for_whom_another_would_be_too_late():
    harness = with_device()
    (load,) = harness.arrive("a", 0.0, slo=0.05)
    assert harness.core.next_wakeup() == pytest.approx(0.05 - RUNS[1])
    commands = harness.core.handle(LoadEnded(load.load, False), now=0.03)
    assert is_refused(commands)


def test_a_quicker_device_that_comes_is_reckoned_with():
    harness = ClockworkHarness()
    offering(harness, "slow", load=2 * LOAD, pages=2, loaded="b")
    assert is_refused(harness.arrive("a", 0.0, slo=TIGHT))
    harness.device("quick", pages=2, loaded="b")
    commands = harness.arrive("a", 1.0, slo=TIGHT)
    assert is_loaded_on([c for c in commands if not isinstance(c, UnloadModel)]) == ["quick"]


def test_a_quicker_device_that_went_is_not():
    harness = ClockworkHarness()
    harness.device("quick")
    offering(harness, "slow", load=2 * LOAD, pages=2, loaded="b")
    # Too late for anybody; and the next ones are loaded where they can be.
    assert isinstance(harness.arrive("a", 0.0, slo=0.001)[0], Reject)
    harness.core.handle(ExecutorLost("quick"), now=0.01)
    assert is_refused(harness.arrive("a", 1.0, slo=TIGHT))


def swap(harness, now, *, load):
    """Let the device "gpu" hold `a` for a moment, then `c` again; a LOAD takes `load` seconds."""
    for model in "ac":
        *_, command = harness.arrive(model, now)
        assert is_loaded_on([command]) == ["gpu"]
        commands = harness.core.handle(LoadEnded(command.load, True, load), now=now + load)
        (run,) = executes(commands)
        harness.end(run.execution, now + load + RUNS[1], RUNS[1])
        now += 0.1
    return now


def two(first, second):
    """Two devices without free pages, "gpu" and "other", that load models within such times."""
    harness = ClockworkHarness("abc")
    offering(harness, "gpu", load=first, pages=2, loaded="c")
    offering(harness, "other", load=second, pages=2, loaded="b")
    return harness


def with_an_ejected_device():
    """Two devices; the first, which holds `a`, failed five requests in half a second."""
    harness = ClockworkHarness()
    harness.device("g0", loaded="a")
    harness.device("g1")
    for i in range(5):
        (execute,) = harness.arrive("a", 0.1 * i)
        harness.core.handle(ExecutionEnded(execute.execution, Result.ERROR), now=0.1 * i + 0.01)
    assert harness.core.executors["g0"].ejected
    return harness


def test_what_an_ejected_device_holds_is_loaded_elsewhere_until_it_is_probed():
    harness = with_an_ejected_device()
    (load,) = harness.arrive("a", 0.5)
    assert (load.executor, load.model) == ("g1", "a")
    assert load.latest == pytest.approx(0.5 + SLO - LOAD - RUNS[1])
    assert batch(harness.loaded(load.load, 0.52)) == (6,)
    harness.core.handle(ExecutorLost("g1"), now=0.53)  # the other one is needed again
    (probe,) = harness.arrive("a", 0.54)
    assert (probe.executor, probe.requests) == ("g0", (7,))


def test_what_a_device_holds_that_shuts_down_is_loaded_elsewhere():
    harness = ClockworkHarness()
    harness.device("g0", loaded="a")
    harness.device("g1")
    harness.core.handle(ExecutorSuspected("g0"), now=0.0)
    assert is_loaded_on(harness.arrive("a", 0.0)) == ["g1"]


def test_a_device_that_shuts_down_learns_of_its_last_load():
    harness = with_device()
    (load,) = harness.arrive("a", 0.0)
    harness.core.handle(ExecutorSuspected("gpu"), now=0.001)
    assert harness.loaded(load.load, 0.020) == []
    assert is_refused(harness.wake()[1])


def test_a_device_that_is_probed_loads_beside_the_probe():
    harness = with_an_ejected_device()
    harness.core.handle(ExecutorLost("g1"), now=0.5)
    (probe,) = harness.arrive("a", 0.6)
    assert is_loaded_on(harness.arrive("b", 0.601)) == ["g0"]
    assert not is_refused(harness.end(probe.execution, 0.610))


def test_a_load_that_is_late_wakes_nobody_again_and_again_for_one_that_may_be_retried():
    harness = with_device()
    (failed,) = harness.arrive("a", 0.0, slo=5.0)
    harness.core.handle(LoadEnded(failed.load, False), now=0.020)
    assert is_loaded_on(harness.arrive("b", 0.090, slo=5.0)) == ["gpu"]  # until 0.110
    assert harness.wake() == (pytest.approx(0.105), [])
    assert harness.wake() == (pytest.approx(0.120), [])
    assert harness.core.next_wakeup() == pytest.approx(0.125)


def test_a_device_that_became_slower_is_not_reckoned_with():
    harness = two(LOAD, 1.5 * LOAD)
    now = swap(harness, 0.0, load=1.9 * LOAD)
    between = 1.7 * LOAD + RUNS[1]
    assert is_loaded_on(harness.arrive("a", now, slo=between)) == ["other"]


def test_it_is_believed_again_after_a_while():
    harness = two(LOAD, 1.5 * LOAD)
    swap(harness, 0.0, load=1.9 * LOAD)
    assert is_refused(harness.arrive("a", 1.0, slo=TIGHT))
    assert is_refused(harness.arrive("a", 20.0, slo=TIGHT))  # which it forgets its measurements for
    assert is_loaded_on(harness.arrive("a", 21.0, slo=TIGHT)) == ["gpu"]


def test_a_device_that_became_quicker_is_reckoned_with():
    harness, now = two(1.7 * LOAD, 1.5 * LOAD), 0.0
    for _ in range(9):
        now = swap(harness, now, load=LOAD)
    assert is_refused(harness.arrive("a", now, slo=TIGHT))  # the slowest of ten is believed
    now = swap(harness, now + 1.0, load=LOAD)
    assert is_loaded_on(harness.arrive("a", now, slo=TIGHT)) == ["gpu"]


def test_who_holds_a_model_while_another_becomes_slower_is_compared_with_all():
    """Both become slower than the third; the second less so than the first is by then."""
    harness = ClockworkHarness()
    for name in "xyz":
        harness.device(name)
    policy = harness.core.policies.active[0]
    x, y, z = (policy._gpus[name].device for name in "xyz")
    found = policy._loading
    assert found.fastest_cold_start("a") is x
    for number, (device, slower) in enumerate(((x, 1.9), (y, 1.7)), start=1):
        found.begins("a", device)
        device.begin_load(number, "a", 0.0)
        device.end_load(number, "a", LoadEnded(number, True, slower * LOAD), slower * LOAD)
    for device in (y, x):
        device.unload("a")
        found.ends("a", device)
    assert found.fastest_cold_start("a") is z


def test_requests_that_left_leave_no_demand_behind():
    harness = with_device(loaded="ab")
    harness.arrive("b", 0.0)
    harness.arrive("a", 0.001, priority=Priority.LOW)
    harness.core.handle(RequestCancelled(2), now=0.002)
    now, commands = harness.wake()
    assert (now, commands) == (pytest.approx(0.005), [])
    assert [gpu.work for gpu in harness.core.policies.active[0]._gpus.values()] == pytest.approx(
        [0.0]
    )
    assert harness.core.next_wakeup() is None


def test_nor_do_those_that_would_have_been_refused():
    harness = with_device(loaded="ab")
    harness.arrive("b", 0.0)
    for _ in range(16):
        harness.arrive("b", 0.001)
    harness.wake()
    harness.end(1, 0.010)  # and the others at 0.05
    harness.arrive("a", 0.011, slo=0.030, priority=Priority.LOW)
    harness.core.handle(RequestCancelled(18), now=0.012)
    now, commands = harness.wake()
    assert (now, commands) == (pytest.approx(0.031), [])
    assert [gpu.work for gpu in harness.core.policies.active[0]._gpus.values()] == pytest.approx(
        [0.0]
    )


def test_a_doubted_load_is_something_new_once():
    device = DeviceState(Capabilities(2, {"a": ModelCapabilities(2, LOAD, RUNS)}, ()))
    device.begin_load(1, "a", 0.0)
    device.end_load(1, "a", LoadEnded(1, True, 1.5 * LOAD), 0.03)
    assert not device.doubt("a", 5.0)
    assert device.loading("a") == 1.5 * LOAD
    assert device.doubt("a", 11.0)
    assert device.loading("a") == LOAD
    assert not device.doubt("a", 12.0)


@pytest.mark.parametrize(
    ("requests", "seconds"),
    [(0, 0.0), (1, RUNS[1]), (2, RUNS[2]), (5, 5 * RUNS[4] / 4), (40, 40 * RUNS[16] / 16)],
)
def test_requests_are_worth_what_they_take_in_batches_that_they_fill(requests, seconds):
    device = DeviceState(Capabilities(2, {"a": ModelCapabilities(2, LOAD, RUNS)}, ()))
    assert device.work("a", requests) == pytest.approx(seconds)


def test_most_of_a_models_demand_falls_to_the_device_with_less_else_to_do():
    harness = ClockworkHarness("abc")
    harness.device("busy", loaded="ab")
    harness.device("free", loaded="ac")
    for model, count in (("b", 40), ("c", 2), ("a", 40)):
        for _ in range(count):
            harness.arrive(model, 0.0, slo=SLO)
    shares = {p.gpu.name: p.share for p in harness.core.policies.active[0]._demands["a"].replicas}
    assert shares["free"] > 2 * shares["busy"] > 0

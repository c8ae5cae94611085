"""Policy `clockwork`, rule by rule (Clockwork, §5.3): events in, commands out."""

import pytest

from dispatcher.schedulers.clockwork.policy import Clockwork, ClockworkPaper
from roma.domain.actions import ModelCapabilities
from roma.domain.events import (
    Execute,
    ExecutionMissed,
    ExecutorLost,
    Fail,
    LoadEnded,
    LoadModel,
    Reason,
    Reject,
    RequestCancelled,
    UnloadModel,
    Woken,
)
from roma.domain.model import Priority
from tests.support.clockwork import LOAD, RUNS, SLO, ClockworkHarness, batch, executes, with_device


def test_a_loaded_model_runs_at_once_in_a_window_that_keeps_its_deadline():
    harness = with_device(loaded="a")
    (execute,) = harness.arrive("a", 1.0)
    assert (execute.executor, execute.model, execute.requests) == ("gpu", "a", (1,))
    assert execute.window == (1.0, pytest.approx(1.0 + SLO - 0.010))


def test_a_cold_model_is_loaded_and_runs_when_it_is():
    harness = with_device()
    (load,) = harness.arrive("a", 0.0)
    assert (load.load, load.executor, load.model) == (1, "gpu", "a")
    assert load.latest == pytest.approx(SLO - LOAD - 0.010)
    assert batch(harness.loaded(1, 0.02)) == (1,)


def test_a_device_is_given_work_when_less_than_ahead_is_left_and_not_before():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    assert harness.arrive("a", 0.001) == []
    now, commands = harness.wake()
    assert now == pytest.approx(0.010 - 0.005)
    assert batch(commands) == (2,)


def test_what_waited_meanwhile_runs_as_one_batch():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    harness.burst("a", 5, 0.001)
    assert batch(harness.end(1, 0.004)) == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("policy", "slo", "runs"),
    [
        (Clockwork, 0.029, (2, 3, 4, 5)),  # once the device is free, at 0.010: time for 4, not 8
        (ClockworkPaper, 0.0195, (2,)),  # time for 1 alone
    ],
)
def test_a_request_near_its_deadline_leaves_larger_batches_before_smaller_ones(policy, slo, runs):
    harness = with_device(policy=policy, loaded="ab")
    harness.arrive("b", 0.0)
    harness.arrive("a", 0.001, slo=slo)
    harness.burst("a", 15, 0.001)
    assert batch(harness.end(1, 0.010)) == runs


def test_the_strategy_that_must_begin_first_is_taken():
    harness = with_device(loaded="ab")
    harness.arrive("a", 0.0)
    harness.arrive("a", 0.001, slo=0.5)
    harness.arrive("b", 0.002, slo=0.3)
    assert batch(harness.end(1, 0.004)) == (3,)


@pytest.mark.parametrize(
    ("policy", "slo", "runs"),
    [
        (Clockwork, 0.052, tuple(range(3, 19))),  # sixteen that would be lost go first
        (ClockworkPaper, 0.052, (2,)),  # its order is by latest alone
        (Clockwork, 0.5, (2,)),  # they can wait
    ],
)
def test_a_larger_batch_that_would_be_lost_goes_first(policy, slo, runs):
    """A request of a cannot wait."""
    harness = with_device(policy=policy, loaded="ab")
    harness.arrive("a", 0.0)
    harness.arrive("a", 0.001, slo=0.020)
    harness.burst("b", 16, 0.002, slo=slo)
    assert batch(harness.end(1, 0.0095)) == runs


def test_a_request_is_refused_in_the_moment_it_cannot_be_answered_any_more():
    harness = with_device(loaded="ab")
    harness.burst("b", 17, 0.0)  # one of them runs, the others wait
    harness.end(1, 0.0101)  # sixteen: 40 ms
    harness.arrive("a", 0.011, slo=0.030)
    now, commands = harness.wake()
    assert now == pytest.approx(0.011 + 0.030 - 0.010)
    (reject,) = commands
    assert (reject.request, reject.reason) == (18, Reason.DEADLINE)
    assert reject.detail == "an answer takes 0.0100 s from now, the deadline is before that"


def test_one_that_a_larger_batch_left_behind_is_refused_in_its_moment_too():
    harness = with_device(loaded="ab")
    harness.arrive("b", 0.0)
    harness.arrive("a", 0.001, slo=0.029)
    harness.burst("a", 8, 0.001, slo=0.035)  # eight must begin before it alone must
    assert batch(harness.end(1, 0.010)) == tuple(range(3, 11))
    now, (reject,) = harness.wake()
    assert now == pytest.approx(0.001 + 0.029 - 0.010)
    assert reject.request == 2


@pytest.mark.parametrize("priority", Priority)
def test_a_request_for_which_no_load_comes_in_time_is_refused_at_once_and_loads_for_the_next(
    priority,
):
    harness = with_device()
    reject, load = harness.arrive("a", 0.0, slo=0.025, priority=priority)
    assert isinstance(reject, Reject)
    assert isinstance(load, LoadModel)
    harness.loaded(load.load, 0.02)
    assert batch(harness.arrive("a", 0.1, slo=0.025)) == (2,)


def test_that_load_takes_no_others_place():
    harness = with_device(pages=3, loaded="b")
    (reject,) = harness.arrive("a", 0.0, slo=0.025)
    assert isinstance(reject, Reject)


@pytest.mark.parametrize("off", [-2e-6, -1e-6, -1e-9, 0.0, 1e-9, 1e-6])
def test_a_request_on_the_edge_of_its_last_moment_ends(off):
    """Between two comparisons, each with its tolerance, it was on neither side, for ever."""
    for now in (0.5, 31.0, 12345.678, 40000.123456789):
        harness = ClockworkHarness("ab")
        harness.device(pages=2, loaded="b")
        harness.burst("b", 17, now)
        harness.arrive("b", now + 0.02, slo=0.0125)
        harness.core.handle(Woken(), now=now + 0.02 + 0.0125 - 0.010 + off)
        assert harness.core.next_wakeup() > now


def test_what_a_model_needs_is_asked_of_the_device_that_is_quickest():
    for order in ("slow fast", "fast slow"):
        harness = ClockworkHarness()
        quick = harness.models
        for name in order.split():
            harness.models = (
                {m: ModelCapabilities(2, 2.0, RUNS) for m in quick} if name == "slow" else quick
            )
            harness.device(name)
        harness.models = quick
        (load,) = harness.arrive("a", 0.0)
        assert (load.executor, load.model) == ("fast", "a")


def test_a_load_that_waits_behind_refuses_nobody_of_the_first():
    harness = with_device(ahead=0.1)
    (first,) = harness.arrive("a", 0.0, slo=0.2)
    (behind,) = harness.arrive("b", 0.001, slo=0.2)
    assert (first.executor, behind.executor) == ("gpu", "gpu")
    assert harness.arrive("a", 0.002, slo=0.030) == []  # 18 ms until it is loaded, 10 ms to run
    urgent, _ = executes(harness.loaded(first.load, 0.020))
    assert urgent.requests == (3,)


def test_a_slow_load_is_forgotten_too():
    harness = with_device("abc", pages=4, loaded="b")
    demands = harness.demands()
    for i in range(5):
        demands.begin_load(100 + i, "a", 0.0)
        demands.end_load(100 + i, "a", LoadEnded(100 + i, True, 5.0), 5.0)
        demands.unload("a")
    demands.begin_load(200, "c", 5.0)  # no page is free: nothing is loaded on the mere chance
    assert isinstance(harness.arrive("a", 6.0)[0], Reject)
    assert demands.loading("a") == 5.0
    harness.arrive("a", 16.0)
    assert demands.loading("a") == LOAD


def test_a_device_that_hangs_is_given_nothing_more():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    assert harness.arrive("a", 0.100) == []  # 90 ms late already
    assert harness.core.next_wakeup() > 0.150
    assert batch(harness.end(1, 0.120)) == (2,)


def test_a_device_that_is_back_is_looked_at_when_a_look_of_its_former_life_is_due():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    harness.arrive("a", 0.001)
    look = harness.core.next_wakeup()
    harness.core.handle(ExecutorLost("gpu"), now=0.002)
    harness.device(loaded="a", now=0.003)
    assert batch(harness.arrive("a", look)) == (3,)


def test_a_request_that_comes_while_its_model_loads_is_refused_if_that_takes_too_long():
    harness = with_device()
    harness.arrive("a", 0.0)
    (reject,) = harness.arrive("a", 0.001, slo=0.028)
    assert reject.request == 2
    assert harness.arrive("a", 0.001, slo=0.030) == []


def test_the_least_recently_used_model_makes_room():
    harness = with_device("abc", pages=4, loaded="ab")
    harness.end(harness.arrive("a", 0.0)[0].execution, 0.01)  # b is now the one used last
    unload, load = harness.arrive("c", 0.02)
    assert unload == UnloadModel("gpu", "b")
    assert isinstance(load, LoadModel)
    assert harness.demands().free == 0


def test_a_model_that_is_used_is_not_taken_off():
    harness = with_device("ab", pages=2, loaded="a")
    (execute,) = harness.arrive("a", 0.0)
    assert harness.arrive("b", 0.001) == []
    unload, load = harness.end(execute.execution, 0.01)
    assert unload == UnloadModel("gpu", "a")
    assert (load.model, load.executor) == ("b", "gpu")


def test_no_model_is_unloaded_for_one_that_would_still_not_fit():
    """Else it would be loaded again at once, and unloaded again, as long as the other runs."""
    harness = ClockworkHarness("abc")
    harness.models["c"] = ModelCapabilities(4, LOAD, RUNS)
    harness.device(pages=4, loaded="ab")
    (execute,) = harness.arrive("a", 0.0)
    assert harness.arrive("c", 0.001) == []
    *unloads, load = harness.end(execute.execution, 0.01)
    assert unloads == [UnloadModel("gpu", "b"), UnloadModel("gpu", "a")]
    assert (load.model, load.executor) == ("c", "gpu")


def test_a_model_whose_demand_is_met_is_not_loaded_elsewhere():
    harness = ClockworkHarness()
    harness.device("g0", loaded="a")
    harness.device("g1")
    assert [type(c) for c in harness.arrive("a", 0.0)] == [Execute]
    assert harness.arrive("a", 0.001) == []


@pytest.mark.parametrize(
    ("policy", "pages", "others", "seconds"),
    [
        (Clockwork, 4, 180, 0.5),
        (Clockwork, 3, 0, 1.0),  # its pages are not free: it must be necessary
        (Clockwork, 4, 250, 1.0),  # it has as much to do
        (ClockworkPaper, 4, 0, 1.0),
    ],
)
def test_a_model_is_loaded_elsewhere_before_its_device_cannot_meet_its_demand(
    policy, pages, others, seconds
):
    harness = ClockworkHarness(policy=policy)
    harness.device("g0", loaded="a", pages=2)
    harness.device("g1", loaded="b", pages=pages)
    for _ in range(others):
        harness.arrive("b", 0.0)
    loads = []
    for i in range(500):  # in batches of 16 each is 2.5 ms of work, and the deadline is 1 s
        loads += [(i, c) for c in harness.arrive("a", i / 1e6) if isinstance(c, LoadModel)]
    ((first, load),) = loads
    assert first * RUNS[16] / 16 == pytest.approx(seconds, rel=0.05)
    assert (load.executor, load.model) == ("g1", "a")


def test_models_that_are_everywhere_do_not_keep_another_one_from_being_loaded():
    busy = "abcdefghijklmnopqrst"
    harness = with_device(busy + "z", loaded=busy)
    for model in busy:  # more than the device can do: each has demand that is not met
        for _ in range(100):
            harness.arrive(model, 0.0)
    refused, load = harness.arrive("z", 0.001, slo=0.025)  # too soon for this one
    assert (type(refused), refused.request) == (Reject, 2001)
    assert (type(load), load.model) == (LoadModel, "z")


def test_models_that_might_be_spread_do_not_keep_a_cold_one_from_being_loaded():
    busy = [f"m{i}" for i in range(40)]
    harness = ClockworkHarness([*busy, "z"])
    for i in range(4):
        harness.device(f"g{i}", loaded=busy[i::4])
    arrivals = [harness.arrive(model, 0.0) for _ in range(24) for model in busy]
    for load in [c for commands in arrivals for c in commands if isinstance(c, LoadModel)]:
        harness.loaded(load.load, 0.02)
    # Each device has 0.6 s of work, more than half of what it can do within the deadline of 1 s.
    refused, load = harness.arrive("z", 0.03, slo=0.001)  # too soon for this one
    assert type(refused) is Reject
    assert (type(load), load.model) == (LoadModel, "z")


def test_an_execution_that_missed_its_window_is_tried_again():
    harness = with_device(loaded="a")
    (first,) = harness.arrive("a", 0.0)
    (second,) = harness.core.handle(ExecutionMissed(first.execution), now=0.2)
    assert second.requests == first.requests
    assert second.execution != first.execution


def test_a_missed_execution_whose_requests_are_late_by_then_is_refused():
    harness = with_device(loaded="a")
    (first,) = harness.arrive("a", 0.0)
    (reject,) = harness.core.handle(ExecutionMissed(first.execution), now=SLO - 0.005)
    assert (reject.request, reject.reason) == (1, Reason.DEADLINE)


def test_a_load_that_failed_gives_its_pages_back_and_is_tried_again():
    harness = with_device(pages=2)
    (load,) = harness.arrive("a", 0.0)
    assert harness.core.handle(LoadEnded(load.load, False), now=0.01) == []
    assert harness.demands().free == 2
    assert harness.arrive("a", 0.02) == []
    now, (again,) = harness.wake()
    assert now == pytest.approx(0.01 + 0.1)
    assert (again.model, type(again)) == ("a", LoadModel)


def test_each_failure_of_a_load_doubles_the_pause_and_a_missed_one_is_none():
    harness = with_device()
    (load,) = harness.arrive("a", 0.0)
    (again,) = harness.core.handle(LoadEnded(load.load, False, None, True), now=0.01)
    for now, pause in ((0.01, 0.1), (0.2, 0.2), (0.5, 0.4)):
        harness.core.handle(LoadEnded(again.load, False), now=now)
        assert harness.demands().load_pause("a") == pytest.approx(now + pause)
        harness.arrive("a", now + pause - 0.001)
        woken, (again,) = harness.wake()
        assert woken == pytest.approx(now + pause)


def test_a_model_that_cannot_be_loaded_leaves_the_device_to_others():
    harness = with_device()
    (load,) = harness.arrive("a", 0.0)
    harness.core.handle(LoadEnded(load.load, False), now=0.01)
    (other,) = harness.arrive("b", 0.02)
    assert other.model == "b"


def test_models_are_spread_over_devices_though_none_has_work_to_speak_of():
    harness = ClockworkHarness("abcd")
    harness.device("g0")
    harness.device("g1")
    where = []
    for i, model in enumerate("abcd"):
        (load,) = harness.arrive(model, float(i))
        where.append(load.executor)
        (execute,) = harness.loaded(load.load, i + LOAD)
        harness.end(execute.execution, i + 0.04)
    assert where == ["g0", "g1", "g0", "g1"]


def test_a_lost_device_fails_what_it_ran_and_forgets_what_it_held():
    harness = ClockworkHarness()
    harness.device("g0", loaded="a")
    harness.device("g1", pages=50)  # less is free there
    harness.arrive("a", 0.0)
    harness.arrive("b", 0.001)
    _, fail, load = harness.core.handle(ExecutorLost("g0"), now=0.002)
    assert (fail.request, type(fail)) == (1, Fail)
    assert (load.executor, load.model) == ("g1", "b")  # it was being loaded on g0
    assert harness.loaded(load.load - 1, 0.003) == []
    assert batch(harness.loaded(load.load, 0.022)) == (2,)


def test_a_device_that_is_back_says_what_it_holds():
    harness = ClockworkHarness()
    harness.device("g0", loaded="a")
    harness.device("g1", loaded="b")
    harness.core.handle(ExecutorLost("g0"), now=0.1)
    assert harness.device("g0", loaded="a", now=0.2) == []
    (execute,) = harness.arrive("a", 0.3)
    assert execute.executor == "g0"


def test_what_waits_runs_on_a_device_that_is_back_with_its_model():
    harness = ClockworkHarness()
    harness.device("g0", pages=2, loaded="b")
    harness.device("g1")
    harness.burst("b", 2, 0.0)
    harness.core.handle(ExecutorLost("g0"), now=0.001)
    assert batch(harness.device("g0", pages=2, loaded="b", now=0.002)) == (2,)


def test_a_cancelled_request_is_in_no_batch():
    harness = with_device(loaded="a")
    harness.arrive("a", 0.0)
    harness.burst("a", 3, 0.001)
    harness.core.handle(RequestCancelled(3), now=0.002)
    assert batch(harness.end(1, 0.004)) == (2, 4)


def test_batch_requests_run_when_no_interactive_one_is_more_urgent():
    harness = with_device(loaded="ab")
    harness.arrive("b", 0.0)
    harness.arrive("a", 0.001, slo=60.0, priority=Priority.LOW)
    harness.arrive("b", 0.002)
    commands = harness.end(1, 0.0095)
    assert batch(commands) == (3,)
    assert batch(harness.end(executes(commands)[0].execution, 0.02)) == (2,)


def measure(harness, durations, now=1.0):
    """Run a request for each duration; return what the next one is predicted to take."""
    for i, duration in enumerate(durations):
        (execute,) = harness.arrive("a", now + i)
        harness.end(execute.execution, now + i + 0.5, duration=duration)
    return harness.demands().execution("a", 1)


def test_the_largest_of_the_last_ten_measurements_predicts_the_next():
    harness = with_device(loaded="a")
    assert measure(harness, [0.015]) == 0.015
    assert measure(harness, [0.012] * 9, 2.0) == 0.015
    assert measure(harness, [0.012], 11.0) == 0.012
    assert harness.demands().execution("a", 2) == RUNS[2]


def test_an_accident_is_no_measurement_but_five_of_ten_are():
    harness = with_device(loaded="a")
    assert measure(harness, [0.030] * 4) == 0.010
    assert measure(harness, [0.030], 5.0) == 0.030


def test_a_batch_size_that_is_not_run_follows_one_that_is():
    harness = with_device(loaded="a")
    demands = harness.demands()
    for i in range(5):  # pairs take three times as long as they were said to: accidents, perhaps
        demands.begin(100 + i, "a", 2, 0.4)
        demands.end(100 + i, "a", 2, 0.5, 0.036)
    assert demands.execution("a", 2) == 0.036
    measure(harness, [0.010], 5.0)
    assert demands.execution("a", 2) == 0.036
    measure(harness, [0.010], 11.0)
    assert demands.execution("a", 2) == RUNS[2]


def test_a_prediction_that_refuses_everything_is_forgotten_after_a_while():
    harness = with_device(loaded="a")
    measure(harness, [2.0] * 5)  # slower than any deadline, by accidents or for a time
    assert isinstance(harness.arrive("a", 6.0)[0], Reject)
    assert isinstance(harness.arrive("a", 15.0)[0], Reject)
    harness.arrive("a", 16.0)
    assert batch(harness.arrive("a", 16.1))


def test_latency_is_kept_free_on_both_ways():
    harness = with_device(latency=0.1, loaded="a")
    (execute,) = harness.arrive("a", 0.0, slo=0.5)
    assert execute.window[1] == pytest.approx(0.5 - 0.010 - 0.1)
    assert isinstance(harness.arrive("b", 0.0, slo=0.209)[0], Reject)

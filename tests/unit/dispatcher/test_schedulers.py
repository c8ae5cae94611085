"""Scheduling policies, through the core: which model's head runs when a device becomes free."""

import pytest

from roma.domain.events import (
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutionUnreachable,
    ExecutorLost,
    Result,
    Woken,
)
from roma.domain.model import Device, ModelSpec, Sla
from tests.unit.dispatcher.conftest import model


def drain(core, commands, now):
    """Let the GPU finish one execution after the other; return the models in order."""
    order = []
    while commands:
        (command,) = commands
        order.append(command.model)
        now += 0.001
        commands = core.handle(ExecutionEnded(command.execution, Result.OK), now=now)
    return order


def blocked(harness, *models, **options):
    """Return a core whose only GPU is busy until execution 1 ends."""
    core = harness.build(model("warm"), *models, **options)
    harness.gpu()
    harness.arrive("warm", 0.0)
    return core


@pytest.mark.parametrize(
    ("models", "arrivals", "first"),
    [
        # (1.9 - 10)/10 < 0 against (1.0 - 0.5)/0.5 = 1
        ((model("loose", 10.0), model("tight", 0.5)), (0.1, 1.0), "tight"),
        ((model("a", 10.0), model("b", 10.0)), (1.5, 1.0), "b"),
        # 1.0/1.0 against 1.0/0.55
        ((model("plain", 1.0), model("careful", 1.1, alpha=0.5)), (1.0, 1.0), "careful"),
    ],
    ids=[
        "the largest SLA error, not the oldest",
        "without an error the one nearest to its set point",
        "the set point counts, not the SLA",
    ],
)
def test_roma_runs_the_model_with_the_largest_error(harness, models, arrivals, first):
    core = blocked(harness, *models)
    for spec, arrived in zip(models, arrivals, strict=True):
        harness.arrive(spec.name, arrived)
    (started,) = core.handle(ExecutionEnded(1, Result.OK), now=2.0)
    assert (started.executor, started.model) == ("gpu", first)


def test_roma_expects_each_request_to_wait_for_those_before_it(harness):
    core = harness.build(model("long"), model("short"), beta=1.0)
    harness.gpu()
    harness.serve("long", 0.0, 0.5)  # P_G(long) = 0.5
    harness.arrive("long", 1.0)  # runs
    for now in (1.0, 1.1, 1.2):
        harness.arrive("long", now)
    harness.arrive("short", 1.0)
    # long: mean(0.5, 0.4, 0.3) + 0.5·(0+1+2)/3 = 0.9; short: 0.5
    assert core.handle(ExecutionEnded(2, Result.OK), now=1.5)[0].model == "long"


def test_roma_weighs_measured_against_expected_response_times_with_beta(harness):
    def first_choice(beta):
        harness.__init__()
        core = harness.build(model("warm"), model("slow"), model("old"), beta=beta, window=100.0)
        harness.gpu()
        harness.serve("slow", 0.0, 5.0)  # R(slow) = 5
        harness.serve("old", 5.0, 5.1)  # R(old) = 0.1
        harness.arrive("warm", 6.0)
        harness.arrive("old", 6.1)
        harness.arrive("slow", 6.9)
        return core.handle(ExecutionEnded(3, Result.OK), now=7.0)[0].model

    assert first_choice(beta=1.0) == "old"  # 0.9 against 0.1 waited
    assert first_choice(beta=0.0) == "slow"  # 5.0 against 0.1 measured


def test_roma_forgets_response_times_that_left_the_window(harness):
    core = harness.build(model("warm"), model("was_slow"), model("waits"), beta=0.5, window=1.0)
    harness.gpu()
    harness.serve("was_slow", 0.0, 5.0)
    harness.arrive("warm", 10.0)
    harness.arrive("waits", 10.1)
    harness.arrive("was_slow", 10.2)
    assert core.handle(ExecutionEnded(2, Result.OK), now=10.5)[0].model == "waits"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", ["warm", "a", "b", "a", "b"]),
        ("round_robin", ["warm", "a", "b", "a", "b"]),
        ("edf", ["warm", "b", "b", "a", "a"]),
    ],
)
def test_order_of_the_simple_policies(harness, policy, order):
    core = blocked(harness, model("a"), model("b"), gpu=policy)
    harness.arrive("a", 0.1, deadline=100.0)
    harness.arrive("b", 0.2, deadline=10.0)
    harness.arrive("a", 0.3, deadline=100.0)
    harness.arrive("b", 0.4, deadline=10.0)
    commands = core.handle(ExecutionEnded(1, Result.OK), now=1.0)
    assert ["warm", *drain(core, commands, 1.0)] == order


def test_round_robin_gives_a_model_with_many_requests_no_more_turns(harness):
    core = blocked(harness, model("many"), model("few"), gpu="round_robin")
    for i in range(4):
        harness.arrive("many", 0.1 + i / 100)
    harness.arrive("few", 0.5)
    commands = core.handle(ExecutionEnded(1, Result.OK), now=1.0)
    assert drain(core, commands, 1.0) == ["many", "few", "many", "many", "many"]


# Spill: GPU and CPU from one queue


def test_without_spill_any_free_cpu_takes_what_waits(harness):
    harness.build(model("m"), spill=0.0)
    harness.gpu()
    harness.cpu("m@w", "m")
    assert harness.arrive("m", 0.0)[0].executor == "gpu"
    assert harness.arrive("m", 0.0)[0].executor == "m@w"


def profiled(harness, spill):
    """Return a core that knows m takes 0.1 s on the GPU; the GPU is busy since 1.0."""
    core = harness.build(model("m"), spill=spill)
    harness.gpu()
    harness.serve("m", 0.0, 0.1)
    harness.cpu("m@w", "m")
    (running,) = harness.arrive("m", 1.0)
    assert running.executor == "gpu"
    return core, running


def test_spill_keeps_a_request_for_the_gpu_that_reaches_it_in_time(harness):
    core, running = profiled(harness, spill=0.3)
    assert harness.arrive("m", 1.0) == []  # the GPU reaches it at 1.1, before 1.3
    assert core.handle(ExecutionEnded(running.execution, Result.OK), now=1.1)[0].executor == "gpu"


def test_spill_gives_a_request_to_the_cpu_when_the_gpus_cannot_reach_it_in_time(harness):
    core, _ = profiled(harness, spill=0.3)
    assert harness.arrive("m", 1.0) == []
    assert harness.arrive("m", 1.0) == []
    (spilled,) = harness.arrive("m", 1.0)  # two others take the GPU until 1.3: the head spills
    assert (spilled.executor, spilled.requests) == ("m@w", (3,))


def test_spill_asks_to_be_woken_when_a_late_gpu_makes_a_request_spill(harness):
    core, _ = profiled(harness, spill=0.3)
    assert harness.arrive("m", 1.0) == []
    assert core.next_wakeup() == pytest.approx(1.3)  # nothing else waits: its own 0.3·SLA
    (spilled,) = core.handle(Woken(), now=core.next_wakeup())
    assert (spilled.executor, spilled.requests) == ("m@w", (3,))


def test_spill_ends_with_the_gpu(harness):
    core, _ = profiled(harness, spill=0.3)
    assert harness.arrive("m", 1.0) == []
    commands = core.handle(ExecutorLost("gpu"), now=1.05)
    assert [c.executor for c in commands if isinstance(c, Execute)] == ["m@w"]


def test_spill_never_uses_a_container_too_small_to_meet_the_set_point(harness):
    core = harness.build(model("m"), spill=0.3)
    harness.cpu("m@w", "m", cores=0.2)
    harness.serve("m", 0.0, 2.0)  # 2 s alone: above the SLA of 1 s
    harness.gpu()
    (running,) = harness.arrive("m", 3.0)
    assert running.executor == "gpu"
    for _ in range(20):
        assert harness.arrive("m", 3.0) == []
    (late,) = core.handle(ExecutorLost("gpu"), now=3.1)[2:]  # without a GPU it is all there is
    assert late.executor == "m@w"


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_a_gpu_that_is_down_costs_no_memory(harness, policy):
    core = harness.build(model("m"), gpu=policy)
    harness.gpu()
    core.handle(ExecutorLost("gpu"), now=0.0)
    harness.cpu("m@w", "m")
    for i in range(500):
        harness.serve("m", 1.0 + i, 1.5 + i)
    assert len(core.policies.by_device[Device.GPU]._heap) < 50


# Advantage and balance: GPUs take what CPUs would pay most for, CPUs the youngest of the rest


def promised(name, response_time=1.0, cost=0.5):
    return ModelSpec(name, Sla(response_time), deadline=1000.0, cost=cost)


def measured(harness, *times, spill=0.3, **options):
    """Return a core with one GPU, whose P_G of models m0, m1, … (c = 0.5, 1.0, …) are `times`."""
    models = [promised(f"m{i}", cost=0.5 * (i + 1)) for i in range(len(times))]
    core = harness.build(*models, gpu="gpu_savings_first", cpu="balance", spill=spill, **options)
    harness.gpu()
    for i, time in enumerate(times):
        assert harness.serve(f"m{i}", 0.0, time).executor == "gpu"
        core.handle(Woken(), now=1.0)
    return core


@pytest.mark.parametrize(
    ("second", "now", "first"),
    [
        (10.02, 10.1, "m1"),  # 1.0/0.1 against 0.5/0.1, though it is younger
        (10.02, 10.85, "m0"),  # its latest start is 10.91; it is urgent for 0.1 s before
        (10.2, 10.95, "m1"),  # the other one is late anyway: no GPU is wasted on it
    ],
)
def test_advantage_serves_what_saves_most_cores_per_gpu_second(harness, second, now, first):
    core = measured(harness, 0.1, 0.1)
    (busy,) = harness.arrive("m0", 10.0)
    harness.arrive("m0", 10.01)
    harness.arrive("m1", second)
    commands = core.handle(ExecutionEnded(busy.execution, Result.OK), now=now)
    assert commands[0].model == first


def test_a_model_no_gpu_has_run_is_tried_first(harness):
    core = harness.build(promised("known"), promised("new"), gpu="gpu_savings_first", cpu="balance")
    harness.gpu()
    harness.serve("known", 0.0, 0.1)
    (busy,) = harness.arrive("known", 1.0)
    harness.arrive("known", 1.0)
    harness.arrive("new", 1.05)
    assert core.handle(ExecutionEnded(busy.execution, Result.OK), now=1.1)[0].model == "new"


def test_balance_spills_the_youngest_request(harness):
    measured(harness, 0.1)
    harness.cpu("m0@w", "m0", now=5.0)
    assert harness.arrive("m0", 10.0)[0].executor == "gpu"
    assert [harness.arrive("m0", 10.0) for _ in range(2)] == [[], []]
    (spilled,) = harness.arrive("m0", 10.0)  # two others keep the GPU busy until 10.3
    assert (spilled.executor, spilled.requests) == ("m0@w", (harness.next_id,))


def test_balance_lets_only_larger_advantages_go_first(harness):
    measured(harness, 0.1, 0.1)
    harness.cpu("m0@w", "m0", now=5.0)
    harness.cpu("m1@w", "m1", cores=2.0, now=5.0)
    harness.arrive("m0", 10.0)
    for _ in range(2):
        assert harness.arrive("m0", 10.0) == []
    assert harness.arrive("m1", 10.0)[0].executor == "m0@w"  # m1 goes first, so m0 overflows
    assert harness.arrive("m1", 10.0) == []  # though three wait: m1 itself is reached in time


def test_balance_asks_to_be_woken_when_the_gpu_is_slower_than_predicted(harness):
    core = measured(harness, 0.1)
    harness.cpu("m0@w", "m0", now=5.0)
    harness.arrive("m0", 10.0)
    assert harness.arrive("m0", 10.0) == []
    assert core.next_wakeup() == pytest.approx(10.3)
    assert core.handle(Woken(), now=core.next_wakeup())[0].executor == "m0@w"


def test_balance_fills_the_replica_with_the_most_cores_first(harness):
    measured(harness, 0.1)
    harness.cpu("m0@small", "m0", cores=0.8, now=5.0)
    harness.cpu("m0@large", "m0", cores=1.0, now=5.0)
    started = [c.executor for _ in range(6) for c in harness.arrive("m0", 10.0)]
    assert started == ["gpu", "m0@large", "m0@small"]


def test_balance_spills_nothing_to_a_container_too_small_to_answer_in_time(harness):
    core = measured(harness, 0.1)
    harness.cpu("m0@w", "m0", cores=0.4, now=5.0)  # 0.5/0.4 > 1 s
    assert [len(harness.arrive("m0", 10.0)) for _ in range(9)] == [1, *[0] * 8]
    assert core.handle(CoresApplied("m0@w", 0.8), now=10.1)[0].executor == "m0@w"
    commands = core.handle(ExecutorLost("gpu"), now=10.2)
    assert not any(isinstance(c, Execute) for c in commands)  # the CPU is busy
    harness.cpu("m0@x", "m0", cores=0.4, now=10.2)  # without a GPU it is all there is
    assert core.executors["m0@x"].running


def test_without_a_gpu_balance_runs_the_oldest_first(harness):
    core = harness.build(promised("m"), cpu="balance", spill=0.3)
    harness.cpu("m@w", "m")
    (first,) = harness.arrive("m", 0.0)
    harness.arrive("m", 0.1)
    harness.arrive("m", 0.2)
    (second,) = core.handle(ExecutionEnded(first.execution, Result.OK), now=0.3)
    assert second.requests == (2,)


def test_a_spilled_request_that_was_not_reached_returns_to_its_place(harness):
    core = measured(harness, 0.1)
    harness.cpu("m0@w", "m0", now=5.0)
    spilled = [c for _ in range(5) for c in harness.arrive("m0", 10.0)][-1]
    assert spilled.executor == "m0@w"
    harness.arrive("m0", 10.1)
    core.handle(ExecutionUnreachable(spilled.execution), now=10.1)
    waiting = list(core.queues["m0"].waiting)
    assert spilled.requests[0] in waiting
    assert waiting == sorted(waiting)


def test_balance_decides_fast_for_thousands_of_models_whatever_waits(harness):
    """Counted, not timed: a choice touches no queue but through its arrays."""
    names = [f"m{i}" for i in range(2000)]
    core = harness.build(
        *[promised(n) for n in names], gpu="gpu_savings_first", cpu="balance", spill=0.3
    )
    harness.gpu()
    harness.cpu("m0@w", "m0", cores=0.1)
    for name in names:
        harness.arrive(name, 0.0)
    read = []

    class Watched(dict):
        def __getitem__(self, key):
            read.append(key)
            return super().__getitem__(key)

    policies = core.policies.by_device.values()
    for policy in policies:
        object.__setattr__(policy.state, "queues", Watched(core.queues))
        policy.choose(1.0)
    assert read == []

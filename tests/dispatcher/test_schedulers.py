"""Scheduling policies, through the core: which model's head runs when a device becomes free."""

import pytest

from roma.events import Execute, ExecutionEnded, ExecutorLost, Result, Woken
from roma.model import Device, ModelSpec, Sla


def spec(name, response_time=1.0, alpha=1.0, deadline=1000.0):
    return ModelSpec(name, Sla(response_time, alpha=alpha), deadline)


def drain(core, commands, now):
    """Let the GPU finish one execution after the other; return the models in order."""
    order = []
    while commands:
        (command,) = commands
        order.append(command.model)
        now += 0.001
        commands = core.handle(ExecutionEnded(command.execution, Result.OK), now=now)
    return order


def blocked(desk, *models, **options):
    """Return a core whose only GPU is busy until execution 1 ends."""
    core = desk.build(spec("warm"), *models, **options)
    desk.gpu()
    desk.arrive("warm", 0.0)
    return core


def test_roma_runs_the_largest_sla_error_first_not_the_oldest(desk):
    core = blocked(desk, spec("loose", 10.0), spec("tight", 0.5))
    desk.arrive("loose", 0.1)
    desk.arrive("tight", 1.0)
    commands = core.handle(ExecutionEnded(1, Result.OK), now=2.0)
    # loose: (1.9 - 10)/10 < 0, tight: (1.0 - 0.5)/0.5 = 1
    assert commands == [Execute(2, "gpu", "tight", (3,))]


def test_roma_with_no_error_anywhere_runs_the_model_nearest_to_its_set_point(desk):
    core = blocked(desk, spec("a", 10.0), spec("b", 10.0))
    desk.arrive("a", 1.5)
    desk.arrive("b", 1.0)
    assert core.handle(ExecutionEnded(1, Result.OK), now=2.0)[0].model == "b"


def test_roma_aims_at_the_set_point_not_at_the_sla(desk):
    core = blocked(desk, spec("plain", 1.0, alpha=1.0), spec("careful", 1.1, alpha=0.5))
    desk.arrive("plain", 1.0)
    desk.arrive("careful", 1.0)
    # 1.0/1.0 against 1.0/0.55
    assert core.handle(ExecutionEnded(1, Result.OK), now=2.0)[0].model == "careful"


def test_roma_expects_each_request_to_wait_for_those_before_it(desk):
    core = desk.build(spec("long"), spec("short"), beta=1.0)
    desk.gpu()
    (first,) = desk.arrive("long", 0.0)
    core.handle(ExecutionEnded(first.execution, Result.OK), now=0.5)  # P_G(long) = 0.5
    desk.arrive("long", 1.0)  # runs
    for now in (1.0, 1.1, 1.2):
        desk.arrive("long", now)
    desk.arrive("short", 1.0)
    # long: mean(0.5, 0.4, 0.3) + 0.5·(0+1+2)/3 = 0.9; short: 0.5
    assert core.handle(ExecutionEnded(2, Result.OK), now=1.5)[0].model == "long"


def test_roma_weighs_measured_against_expected_response_times_with_beta(desk):
    def first_choice(beta):
        desk.__init__()
        core = desk.build(spec("warm"), spec("slow"), spec("old"), beta=beta, window=100.0)
        desk.gpu()
        (c,) = desk.arrive("slow", 0.0)
        core.handle(ExecutionEnded(c.execution, Result.OK), now=5.0)  # R(slow) = 5
        (c,) = desk.arrive("old", 5.0)
        core.handle(ExecutionEnded(c.execution, Result.OK), now=5.1)  # R(old) = 0.1
        desk.arrive("warm", 6.0)
        desk.arrive("old", 6.1)
        desk.arrive("slow", 6.9)
        return core.handle(ExecutionEnded(3, Result.OK), now=7.0)[0].model

    assert first_choice(beta=1.0) == "old"  # 0.9 against 0.1 waited
    assert first_choice(beta=0.0) == "slow"  # 5.0 against 0.1 measured


def test_roma_forgets_response_times_that_left_the_window(desk):
    core = desk.build(spec("warm"), spec("was_slow"), spec("waits"), beta=0.5, window=1.0)
    desk.gpu()
    (c,) = desk.arrive("was_slow", 0.0)
    core.handle(ExecutionEnded(c.execution, Result.OK), now=5.0)
    desk.arrive("warm", 10.0)
    desk.arrive("waits", 10.1)
    desk.arrive("was_slow", 10.2)
    assert core.handle(ExecutionEnded(2, Result.OK), now=10.5)[0].model == "waits"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", ["warm", "a", "b", "a", "b"]),
        ("round_robin", ["warm", "a", "b", "a", "b"]),
        ("edf", ["warm", "b", "b", "a", "a"]),
    ],
)
def test_order_of_the_simple_policies(desk, policy, order):
    core = blocked(desk, spec("a"), spec("b"), gpu=policy)
    desk.arrive("a", 0.1, deadline=100.0)
    desk.arrive("b", 0.2, deadline=10.0)
    desk.arrive("a", 0.3, deadline=100.0)
    desk.arrive("b", 0.4, deadline=10.0)
    commands = core.handle(ExecutionEnded(1, Result.OK), now=1.0)
    assert ["warm", *drain(core, commands, 1.0)] == order


def test_round_robin_gives_a_model_with_many_requests_no_more_turns(desk):
    core = blocked(desk, spec("many"), spec("few"), gpu="round_robin")
    for i in range(4):
        desk.arrive("many", 0.1 + i / 100)
    desk.arrive("few", 0.5)
    commands = core.handle(ExecutionEnded(1, Result.OK), now=1.0)
    assert drain(core, commands, 1.0) == ["many", "few", "many", "many", "many"]


# Spill: GPU and CPU from one queue


def test_without_spill_any_free_cpu_takes_what_waits(desk):
    desk.build(spec("m"), spill=0.0)
    desk.gpu()
    desk.cpu("m@w", "m")
    assert desk.arrive("m", 0.0)[0].executor == "gpu"
    assert desk.arrive("m", 0.0)[0].executor == "m@w"


def profiled(desk, spill):
    """Return a core that knows m takes 0.1 s on the GPU; the GPU is busy since 1.0."""
    core = desk.build(spec("m"), spill=spill)
    desk.gpu()
    (c,) = desk.arrive("m", 0.0)
    core.handle(ExecutionEnded(c.execution, Result.OK), now=0.1)
    desk.cpu("m@w", "m")
    (running,) = desk.arrive("m", 1.0)
    assert running.executor == "gpu"
    return core, running


def test_spill_keeps_a_request_for_the_gpu_that_reaches_it_in_time(desk):
    core, running = profiled(desk, spill=0.3)
    assert desk.arrive("m", 1.0) == []  # the GPU reaches it at 1.1, before 1.3
    assert core.handle(ExecutionEnded(running.execution, Result.OK), now=1.1)[0].executor == "gpu"


def test_spill_gives_a_request_to_the_cpu_when_the_gpus_cannot_reach_it_in_time(desk):
    core, _ = profiled(desk, spill=0.3)
    assert desk.arrive("m", 1.0) == []
    assert desk.arrive("m", 1.0) == []
    (spilled,) = desk.arrive("m", 1.0)  # two others take the GPU until 1.3: the head spills
    assert (spilled.executor, spilled.requests) == ("m@w", (3,))


def test_spill_asks_to_be_woken_when_a_late_gpu_makes_a_request_spill(desk):
    core, _ = profiled(desk, spill=0.3)
    assert desk.arrive("m", 1.0) == []
    assert core.next_wakeup() == pytest.approx(1.3)  # nothing else waits: its own 0.3·SLA
    (spilled,) = core.handle(Woken(), now=core.next_wakeup())
    assert (spilled.executor, spilled.requests) == ("m@w", (3,))


def test_spill_ends_with_the_gpu(desk):
    core, _ = profiled(desk, spill=0.3)
    assert desk.arrive("m", 1.0) == []
    commands = core.handle(ExecutorLost("gpu"), now=1.05)
    assert [c.executor for c in commands if isinstance(c, Execute)] == ["m@w"]


def test_spill_never_uses_a_container_too_small_to_meet_the_set_point(desk):
    core = desk.build(spec("m"), spill=0.3)
    desk.cpu("m@w", "m", cores=0.2)
    (c,) = desk.arrive("m", 0.0)
    core.handle(ExecutionEnded(c.execution, Result.OK), now=2.0)  # 2 s alone: above the SLA of 1 s
    desk.gpu()
    (running,) = desk.arrive("m", 3.0)
    assert running.executor == "gpu"
    for _ in range(20):
        assert desk.arrive("m", 3.0) == []
    (late,) = core.handle(ExecutorLost("gpu"), now=3.1)[2:]  # without a GPU it is all there is
    assert late.executor == "m@w"


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_a_gpu_that_is_down_costs_no_memory(desk, policy):
    core = desk.build(spec("m"), gpu=policy)
    desk.gpu()
    core.handle(ExecutorLost("gpu"), now=0.0)
    desk.cpu("m@w", "m")
    for i in range(500):
        (c,) = desk.arrive("m", 1.0 + i)
        core.handle(ExecutionEnded(c.execution, Result.OK), now=1.5 + i)
    assert len(core._policies[Device.GPU]._heap) < 50

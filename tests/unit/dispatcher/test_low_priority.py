"""Low-priority requests use what interactive ones leave over, and nothing else."""

import pytest

from dispatcher import reports
from dispatcher.guards.low_priority import RECHECK_INTERVAL
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ModelRemoved,
    Reason,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.model import Device, ModelSpec, Priority, Sla


def batch(harness, model, now, *, deadline=60.0):
    return harness.arrive(model, now, deadline=deadline, priority=Priority.LOW)


def test_a_batch_request_runs_where_nothing_else_does(harness):
    core = harness.on_cpu()
    assert batch(harness, "m", 0.0) == [Execute(1, "m@w", "m", (1,))]
    core.handle(ExecutionEnded(1, Result.OK), now=0.2)
    assert core.low_priority["m"].completed[Device.CPU] == 1
    assert core.executors["m@w"].completed == 1  # what it used is known to have been for something
    # Nothing of it is seen in what the promise is about.
    queue = core.queues["m"]
    assert (queue.arrivals, queue.completed[Device.CPU], queue.response.mean(0.2)) == (0, 0, None)


def test_the_age_of_one_that_runs_asks_no_controller_for_cores(harness):
    core = harness.on_cpu(ModelSpec("m", Sla(0.5), 1.0))
    harness.arrive("m", 0.0)
    batch(harness, "m", 0.0)
    core.handle(ExecutionEnded(1, Result.OK), now=0.1)  # then the other one begins
    (report,) = reports.reply(core, "", 5.0).models
    assert (report.in_flight, report.oldest_age) == (1, 0.0)
    harness.arrive("m", 5.0)
    (report,) = reports.reply(core, "", 5.2).models
    assert report.oldest_age == pytest.approx(0.2)


def test_interactive_requests_go_first_however_late_they_come(harness):
    core = harness.on_cpu()
    harness.arrive("m", 0.0)
    batch(harness, "m", 0.0)
    harness.arrive("m", 0.1)
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.2) == [Execute(2, "m@w", "m", (3,))]
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.3) == [Execute(3, "m@w", "m", (2,))]


def test_a_slot_stays_free_while_interactive_requests_come(harness):
    harness.on_cpu(ModelSpec("m", Sla(0.5), 100.0), cores=2)
    harness.serve("m", 0.0, 0.3)  # two of these do not fit into 0.5 s
    assert len(batch(harness, "m", 0.4)) == 1
    assert batch(harness, "m", 0.4) == []  # the second slot is for whoever comes next
    assert harness.arrive("m", 0.5) == [Execute(3, "m@w", "m", (4,))]


def test_a_model_that_hardly_keeps_its_promise_takes_no_batch_until_it_does(harness):
    core = harness.on_cpu(ModelSpec("m", Sla(1.0), 100.0), cores=4)
    harness.serve("m", 0.0, 0.9)
    assert batch(harness, "m", 1.0) == []
    assert core.next_wakeup() == 1.0 + RECHECK_INTERVAL
    assert core.handle(Woken(), now=1.5) == []
    assert core.handle(Woken(), now=2.0) == [Execute(2, "m@w", "m", (2,))]  # out of the window


def test_a_batch_request_that_finds_no_slack_is_refused_at_its_deadline(harness):
    core = harness.on_cpu()
    harness.arrive("m", 0.0)
    batch(harness, "m", 0.0, deadline=2.0)
    (refused,) = core.handle(Woken(), now=2.0)
    assert (refused.request, refused.reason) == (2, Reason.DEADLINE)
    assert core.low_priority["m"].rejected[Reason.DEADLINE] == 1
    assert core.queues["m"].rejected[Reason.DEADLINE] == 0


def test_a_gpu_takes_a_batch_request_only_if_no_model_needs_it(harness):
    core = harness.build("a", "b")
    harness.gpu()
    harness.arrive("a", 0.0)
    batch(harness, "b", 0.0)
    harness.arrive("a", 0.1)
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.2) == [Execute(2, "gpu", "a", (3,))]
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.3) == [Execute(3, "gpu", "b", (2,))]


def test_models_take_turns_on_a_gpu_that_they_share(harness):
    core = harness.build("a", "b")
    harness.gpu()
    ran = batch(harness, "a", 0.0)
    for _ in range(3):
        batch(harness, "b", 0.0)
    for i in range(5):
        batch(harness, "a", 0.1 * i)  # there are always some of the first model
        ran += core.handle(ExecutionEnded(ran[-1].execution, Result.OK), now=0.1 * (i + 1))
    assert [execute.model for execute in ran] == ["a", "a", "b", "a", "b", "a"]


def test_batch_requests_leave_with_their_model_and_their_client(harness):
    core = harness.build("a", "b")
    harness.cpu("a@w", "a")
    harness.cpu("b@w", "b")
    harness.arrive("a", 0.0)
    for _ in range(2):
        batch(harness, "a", 0.0)
    assert core.handle(RequestCancelled(2), now=0.1) == []
    commands = core.handle(ModelRemoved("a"), now=0.2)
    assert [c.request for c in commands[1:]] == [1, 3]
    assert "a" not in core.low_priority

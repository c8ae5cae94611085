"""The dispatcher core as command lists: events in, `assert commands == [...]`."""

import pytest

from dispatcher import reports
from dispatcher.schedulers.base import DropChoice, GpuScheduler, RunChoice, WaitUntil
from dispatcher.state.lifecycle import RotationStep
from roma.domain.errors import InvalidTransition
from roma.domain.events import (
    Abort,
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    ExecutorSuspected,
    Fail,
    ModelRemoved,
    ModelsMissing,
    Reason,
    Reject,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla
from roma.domain.variants import Variant
from tests.support.by_load import ByLoad
from tests.unit.dispatcher.conftest import model


def test_a_request_runs_at_once_on_an_idle_executor(harness):
    harness.on_cpu()
    assert harness.arrive("m", 1.0) == [Execute(1, "m@w", "m", (1,))]
    assert harness.core.handle(ExecutionEnded(1, Result.OK), now=1.5) == []
    queue = harness.core.queues["m"]
    assert (queue.completed[Device.CPU], queue.late, queue.response.mean(1.5)) == (1, 0, 0.5)


def test_requests_of_a_model_run_in_order_of_arrival_within_the_in_flight_limit(harness):
    core = harness.on_cpu(cores=2.0)
    assert harness.arrive("m", 0.0) == [Execute(1, "m@w", "m", (1,))]
    assert harness.arrive("m", 0.1) == [Execute(2, "m@w", "m", (2,))]
    assert harness.arrive("m", 0.2) == []
    assert harness.arrive("m", 0.3) == []
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.4) == [Execute(3, "m@w", "m", (3,))]
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.5) == [Execute(4, "m@w", "m", (4,))]


@pytest.mark.parametrize(
    ("cores", "threads", "limit"),
    [(0.2, 1, 1), (1.0, 1, 1), (1.1, 1, 2), (4.0, 1, 4), (4.0, 4, 1), (4.1, 4, 2), (0.1, 8, 1)],
)
def test_in_flight_limit_is_cores_per_threads_rounded_up(harness, cores, threads, limit):
    harness.on_cpu(cores=cores, threads=threads)
    assert harness.core.executors["m@w"].limit == limit


def test_applied_cores_move_the_in_flight_limit_at_once(harness):
    core = harness.on_cpu(cores=1.0)
    harness.arrive("m", 0.0)
    assert harness.arrive("m", 0.1) == []
    assert core.handle(CoresApplied("m@w", 2.0), now=0.2) == [Execute(2, "m@w", "m", (2,))]
    core.handle(CoresApplied("m@w", 0.5), now=0.3)
    harness.arrive("m", 0.4)
    # Two still run where one is allowed now: the next starts when both are done.
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.5) == []
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.6) == [Execute(3, "m@w", "m", (3,))]


def test_one_request_in_flight_per_gpu_not_per_device_type(harness):
    harness.build("m")
    harness.gpu("gpu0")
    harness.gpu("gpu1")
    assert harness.arrive("m", 0.0) == [Execute(1, "gpu0", "m", (1,))]
    assert harness.arrive("m", 0.1) == [Execute(2, "gpu1", "m", (2,))]
    assert harness.arrive("m", 0.2) == []


def test_replicas_of_a_model_take_turns(harness):
    harness.build("m")
    for name in ("m@a", "m@b", "m@c"):
        harness.cpu(name, "m")
    used = [harness.serve("m", float(i), i + 0.5).executor for i in range(6)]
    assert used == ["m@a", "m@b", "m@c", "m@a", "m@b", "m@c"]


# Admission


def test_without_a_ready_executable_a_request_is_rejected(harness):
    harness.build("m")
    (command,) = harness.arrive("m", 0.0)
    assert (command.request, command.reason) == (1, Reason.NO_EXECUTABLE)
    assert command.detail == "no executable of model m is ready"


def test_the_queue_is_bounded_by_count(harness):
    harness.on_cpu(model("m", max_waiting=2))
    for i in range(3):
        harness.arrive("m", i / 10)
    (command,) = harness.arrive("m", 0.4)
    assert (command.request, command.reason) == (4, Reason.QUEUE_FULL)
    assert command.detail == "2 requests of model m wait (bound 2)"


def test_a_wrong_prediction_never_blocks_a_request_that_could_start_at_once(harness):
    harness.on_cpu(model("m", deadline=1.0))
    for i in range(5):  # every execution takes ten deadlines
        assert isinstance(harness.serve("m", 10.0 * i, 10.0 * (i + 1)), Execute)


# Deadlines


def test_a_waiting_request_is_rejected_at_its_deadline_not_served_late(harness):
    core = harness.on_cpu(model("m", deadline=1.0))
    harness.arrive("m", 0.0)
    harness.arrive("m", 0.25)
    assert core.next_wakeup() == 1.25
    assert core.handle(Woken(), now=1.0) == []
    assert core.handle(Woken(), now=1.25) == [
        Reject(2, Reason.DEADLINE, 0.0, "deadline passed after 1.000 s")
    ]
    assert core.next_wakeup() is None


def test_age_plus_predicted_service_beyond_the_deadline_is_rejected_in_favour_of_the_next(harness):
    core = harness.on_cpu(model("m", deadline=1.0))
    harness.serve("m", 0.0, 0.4)
    harness.arrive("m", 1.0)  # 2 runs, and takes 0.7 s
    harness.arrive("m", 1.0)  # 3 waits
    harness.arrive("m", 1.4)  # 4 waits
    commands = core.handle(ExecutionEnded(2, Result.OK), now=1.7)
    assert [type(c) for c in commands] == [Reject, Execute]
    assert commands[0].request == 3
    assert commands[0].reason is Reason.DEADLINE
    assert commands[0].detail == "waited 0.700 s + predicted service 0.400 s > deadline 1.000 s"
    assert commands[1].requests == (4,)


def test_a_prediction_scales_with_the_cores_of_now(harness):
    core = harness.on_cpu(model("m", deadline=10.0), cores=1.0)
    harness.serve("m", 0.0, 0.4)
    assert core.executors["m@w"].expected("m") == pytest.approx(0.4)
    core.handle(CoresApplied("m@w", 0.5), now=1.0)
    assert core.executors["m@w"].expected("m") == pytest.approx(0.8)


# Cancellation and loss


def test_a_cancelled_request_leaves_the_queue(harness):
    core = harness.on_cpu()
    for i in range(3):
        harness.arrive("m", i / 10)
    assert core.handle(RequestCancelled(2), now=0.5) == []
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.6) == [Execute(2, "m@w", "m", (3,))]


def test_a_cancelled_request_keeps_its_slot_until_its_executable_has_ended_it(harness):
    core = harness.on_cpu()
    harness.serve("m", 0.0, 0.5)  # so long does one take
    harness.arrive("m", 1.0)
    harness.arrive("m", 1.1)
    assert core.handle(RequestCancelled(2), now=1.2) == []
    assert core.handle(Woken(), now=3.0) == []  # long after it was predicted to end
    (report,) = reports.reply(core, "", 3.0).models
    assert (report.in_flight, report.oldest_age) == (1, 1.9)  # its own age is nobody's
    assert core.handle(ExecutionEnded(2, Result.OK), now=3.1) == [Execute(3, "m@w", "m", (3,))]
    queue = core.queues["m"]
    assert (queue.cancelled, queue.completed[Device.CPU]) == (1, 1)


def test_predictions_learn_from_what_clients_did_not_wait_for(harness):
    core = harness.on_cpu()
    for i in range(5):
        (run,) = harness.arrive("m", 10.0 * i)
        core.handle(RequestCancelled(i + 1), now=10.0 * i + 0.1)
        core.handle(ExecutionEnded(run.execution, Result.OK), now=10.0 * i + 2.0)
    assert core.executors["m@w"].expected("m") == pytest.approx(2.0)


def test_an_executor_that_is_silent_is_tried_with_one_request_until_it_answers(harness):
    core = harness.on_cpu(cores=3.0)
    for i in range(5):
        harness.arrive("m", 0.1 * i)
    core.handle(ExecutionEnded(1, Result.TIMEOUT), now=30.0)
    assert core.queues["m"].failed == 1
    assert core.executors["m@w"].expected("m") == pytest.approx(30.0)  # at least so long
    assert core.handle(ExecutionEnded(2, Result.TIMEOUT), now=30.1) == []  # one still runs
    (tried,) = core.handle(ExecutionEnded(3, Result.TIMEOUT), now=30.2)
    commands = core.handle(ExecutionEnded(tried.execution, Result.OK), now=30.3)
    assert [type(c) for c in commands] == [Execute]
    assert len(core.executors["m@w"].running) == 1
    assert [type(c) for c in harness.arrive("m", 30.4)] == [Execute]  # it is trusted again


def test_one_timeout_limits_an_executor_and_the_next_takes_it_out_of_rotation(harness):
    core = harness.build("m")
    harness.cpu("m@a", "m", cores=2.0)
    harness.cpu("m@b", "m", cores=2.0)
    runs = [harness.arrive("m", 0.0)[0] for _ in range(4)]
    mine = [run.execution for run in runs if run.executor == "m@a"]
    core.handle(ExecutionEnded(mine[0], Result.TIMEOUT), now=30.0)
    executor = core.executors["m@a"]
    assert (executor.probing, executor.ejected) == (True, False)
    core.handle(ExecutionEnded(mine[1], Result.TIMEOUT), now=30.1)
    assert (executor.probing, executor.ejected) == (False, True)
    core.handle(Woken(), now=31.2)
    assert (executor.probing, executor.ejected) == (True, False)


def test_what_runs_is_given_up_at_its_clients_own_deadline_and_not_at_the_models(harness):
    core = harness.on_cpu(ModelSpec("m", Sla(1.0), 1.0), cores=2)
    harness.arrive("m", 0.0, deadline=0.4, strict=True)
    harness.arrive("m", 0.0)
    assert core.next_wakeup() == 0.4
    (rejected,) = core.handle(Woken(), now=0.4)
    assert (rejected.request, rejected.reason) == (1, Reason.DEADLINE)
    assert len(core.executors["m@w"].running) == 2  # its slot is taken as long as it computes
    assert rejected.detail == "deadline passed after 0.400 s"
    assert core.handle(Woken(), now=2.0) == []
    assert core.queues["m"].rejected[Reason.DEADLINE] == 1


def test_what_nobody_waits_for_is_lost_with_its_executor(harness):
    core = harness.on_cpu()
    harness.arrive("m", 0.0)
    core.handle(RequestCancelled(1), now=0.1)
    assert core.handle(ExecutorLost("m@w"), now=0.2) == [Abort(1)]
    core.handle(ExecutorReady("m@w"), now=0.3)
    harness.arrive("m", 0.4)
    assert core.handle(Woken(), now=1000.0) == []
    assert list(core.executors["m@w"].running) == [2]


def test_cancelling_what_has_ended_changes_nothing(harness):
    core = harness.on_cpu()
    harness.serve("m", 0.0, 0.1)
    assert core.handle(RequestCancelled(1), now=0.2) == []
    assert core.queues["m"].cancelled == 0


def test_losing_an_executor_fails_what_it_ran_and_keeps_what_waits_for_another(harness):
    core = harness.build("m")
    harness.cpu("m@a", "m")
    harness.cpu("m@b", "m")
    for i in range(3):
        harness.arrive("m", i / 10)
    assert core.handle(ExecutorLost("m@a"), now=0.5) == [
        Abort(1),
        Fail(1, "executable m@a was lost"),
    ]
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.6) == []  # too late to count
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.7) == [Execute(3, "m@b", "m", (3,))]
    assert core.queues["m"].failed == 1


def test_a_suspect_ends_what_it_runs_and_takes_nothing_until_it_proves_ready(harness):
    core = harness.build("m")
    harness.cpu("m@a", "m", cores=2.0)
    for i in range(4):
        harness.arrive("m", i / 10)
    assert core.handle(ExecutorSuspected("m@a"), now=0.5) == []
    assert core.handle(ExecutionEnded(1, Result.ERROR), now=0.5) == []
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.6) == []
    assert harness.arrive("m", 0.7) == []  # it waits: nobody said that the executor is gone
    commands = core.handle(ExecutorReady("m@a"), now=0.8)
    assert commands == [Execute(3, "m@a", "m", (3,)), Execute(4, "m@a", "m", (4,))]
    core.handle(ExecutorSuspected("m@a"), now=0.9)
    commands = core.handle(ExecutorLost("m@a"), now=1.0)
    assert [type(c) for c in commands] == [Abort, Fail, Abort, Fail, Reject]
    assert core.handle(ExecutorSuspected("m@a"), now=1.1) == []  # lost already: it stays so
    assert core.handle(ExecutorReady("m@a"), now=1.2) == []
    assert harness.arrive("m", 1.3) == [Execute(5, "m@a", "m", (6,))]


def test_a_removed_model_leaves_nothing_waiting_or_running(harness):
    core = harness.build("a", "b")
    harness.gpu()
    harness.arrive("a", 0.0)
    harness.arrive("a", 0.1)
    commands = core.handle(ModelRemoved("a"), now=0.2)
    assert commands[:2] == [Abort(1), Fail(1, "model a was removed")]
    assert [type(c) for c in commands[2:]] == [Reject]
    assert core.live == 0
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.3) == []  # nobody counts it
    assert harness.arrive("b", 0.4) == [Execute(2, "gpu", "b", (3,))]


@pytest.mark.parametrize("cpu", ["balance", "round_robin"])
@pytest.mark.parametrize("gpu", ["gpu_savings_first", "roma", "fcfs", "edf"])
def test_a_model_that_a_gpu_lacks_costs_the_others_nothing(harness, gpu, cpu):
    core = harness.build("a", "b", gpu=gpu, cpu=cpu, spill=0.5)
    harness.gpu()
    harness.cpu("b@w", "b")
    assert harness.arrive("a", 0.0) == [Execute(1, "gpu", "a", (1,))]
    core.handle(ModelsMissing("gpu", ("b",)), now=0.1)
    # It does not wait for the GPU, and its CPU takes it in turn.
    assert harness.arrive("b", 0.1) == [Execute(2, "b@w", "b", (2,))]
    assert harness.arrive("b", 0.2) == []
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.3) == []
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.4) == [Execute(3, "b@w", "b", (3,))]
    assert harness.arrive("a", 0.5) == [Execute(4, "gpu", "a", (4,))]
    assert core.handle(ExecutionEnded(4, Result.OK), now=0.6) == []
    # Once it is loaded, the GPU takes it.
    assert core.handle(ModelsMissing("gpu", ()), now=0.6) == []
    assert harness.arrive("b", 0.7) == [Execute(5, "gpu", "b", (5,))]


def test_what_waits_for_a_model_that_the_only_server_loses_is_refused(harness):
    core = harness.build("a", "b", gpu="gpu_savings_first", cpu="balance")
    harness.gpu()
    harness.arrive("a", 0.0)
    assert harness.arrive("a", 0.1) == harness.arrive("b", 0.1) == []
    commands = core.handle(ModelsMissing("gpu", ("b",)), now=0.2)
    assert [(c.request, c.reason) for c in commands] == [(3, Reason.NO_EXECUTABLE)]
    assert [c.reason for c in harness.arrive("b", 0.3)] == [Reason.NO_EXECUTABLE]
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.4) == [Execute(2, "gpu", "a", (2,))]
    # A server that was lost may come back with all its models.
    core.handle(ExecutorLost("gpu"), now=0.5)
    core.handle(ExecutorReady("gpu"), now=0.6)
    assert harness.arrive("b", 0.7) == [Execute(3, "gpu", "b", (5,))]


def test_of_two_gpus_the_one_that_lacks_more_takes_nothing(harness):
    core = harness.build("a", "b", gpu="gpu_savings_first", cpu="balance")
    harness.gpu("gpu0")
    harness.gpu("gpu1")
    core.handle(ModelsMissing("gpu0", ("b",)), now=0.0)
    assert harness.arrive("b", 0.1) == [Execute(1, "gpu1", "b", (1,))]
    assert harness.arrive("a", 0.2) == []
    assert core.handle(ExecutionEnded(1, Result.OK), now=0.3) == [Execute(2, "gpu1", "a", (2,))]
    # With the other one lost, it is the most complete one, once it has been looked at.
    assert core.executors.lacks_more("gpu0", {"b"})
    core.handle(ExecutorLost("gpu1"), now=0.4)
    assert not core.executors.lacks_more("gpu0", {"b"})
    assert core.handle(ExecutorReady("gpu0"), now=0.5) == []
    assert [c.reason for c in harness.arrive("b", 0.6)] == [Reason.NO_EXECUTABLE]
    assert harness.arrive("a", 0.7) == [Execute(3, "gpu0", "a", (4,))]
    # One that lacks the same works beside it.
    core.handle(ModelsMissing("gpu1", ("b",)), now=0.8)
    core.handle(ExecutorReady("gpu1"), now=0.8)
    assert harness.arrive("a", 0.9) == [Execute(4, "gpu1", "a", (5,))]


@pytest.mark.parametrize("gpu", ["fcfs", "edf"])
def test_a_gpu_is_not_held_up_by_what_it_lacks(harness, gpu):
    core = harness.build("a", "b", gpu=gpu, cpu="balance")
    harness.gpu()
    harness.cpu("b@w", "b")
    core.handle(ModelsMissing("gpu", ("b",)), now=0.0)
    harness.arrive("b", 0.0)
    harness.arrive("b", 0.1)  # waits for its CPU
    harness.arrive("a", 0.2)
    for i in range(40):  # clients that come and go while the GPU is busy
        harness.arrive("a", 1.0 + i / 100)
        core.handle(RequestCancelled(harness.next_id), now=1.0 + i / 100)
    assert harness.arrive("a", 2.0) == []
    (execute,) = core.handle(ExecutionEnded(2, Result.OK), now=2.1)
    assert (execute.executor, execute.model) == ("gpu", "a")


def test_an_ejected_executor_is_needed_again_if_a_gpu_loses_the_model(harness):
    core = harness.build("a", "b", gpu="gpu_savings_first", cpu="balance")
    harness.gpu()
    harness.cpu("b@w", "b")
    core.executors["b@w"].rotate(RotationStep.EJECT)
    core._ejections.ends.append((1e9, "b@w"))
    core.policies.on_executor(core.executors["b@w"], 0.0)
    harness.arrive("a", 0.0)
    assert harness.arrive("b", 0.1) == []
    assert core.handle(ModelsMissing("gpu", ("b",)), now=0.2) == [Execute(2, "b@w", "b", (2,))]


def test_an_unreached_request_runs_elsewhere_once_and_keeps_its_place(harness):
    core = harness.build("m")
    harness.cpu("m@a", "m")
    harness.cpu("m@b", "m")
    for i in range(3):
        harness.arrive("m", i / 10)
    assert core.handle(ExecutionUnreachable(1), now=0.5) == []  # back at the head, m@b is busy
    assert core.handle(ExecutionEnded(2, Result.OK), now=0.6) == [Execute(3, "m@b", "m", (1,))]
    core.handle(ExecutorReady("m@a"), now=0.7)
    commands = core.handle(ExecutionUnreachable(3), now=0.8)
    assert Fail(1, "executable m@b cannot be reached") in commands


def test_only_a_share_of_the_requests_runs_a_second_time(harness):
    core = harness.on_cpu()

    def runs_again(now):
        (first,) = harness.arrive("m", now)
        core.handle(ExecutionUnreachable(first.execution, gone=False), now=now)
        commands = core.handle(ExecutorReady("m@w"), now=now)
        if commands:
            core.handle(ExecutionEnded(commands[0].execution, Result.OK), now=now)
        return bool(commands)

    # What is saved up, and a tenth of those that come.
    assert [runs_again(float(i)) for i in range(12)] == [True] * 11 + [False]
    for i in range(10):
        harness.serve("m", 20.0 + i, 20.0 + i)
    assert [runs_again(40.0 + i) for i in range(3)] == [True, False, False]


@pytest.mark.parametrize("gone", [True, False], ids=["refused", "silent"])
def test_a_connection_that_nobody_takes_costs_no_other_request(harness, gone):
    """A server that shuts down refuses connections, too, and ends what it runs."""
    core = harness.build("m")
    harness.cpu("m@a", "m", cores=2)
    harness.arrive("m", 0.0)
    harness.arrive("m", 0.1)
    # It waits for a look.
    assert core.handle(ExecutionUnreachable(1, gone=gone), now=1.6) == []
    assert [e.id for e in core.running()] == [2]
    assert core.handle(ExecutionEnded(2, Result.OK), now=1.7) == []
    assert core.handle(ExecutorReady("m@a"), now=1.8) == [Execute(3, "m@a", "m", (1,))]
    assert core.executors["m@a"].losses == 0


def test_failed_and_invalid_answers_are_no_fast_responses(harness):
    core = harness.on_cpu()
    for i, result in enumerate((Result.ERROR, Result.INVALID)):
        harness.serve("m", float(i), i + 0.001, result)
    queue = core.queues["m"]
    assert (queue.failed, queue.invalid, queue.response.mean(1.1)) == (1, 1, None)
    assert core.executors["m@w"].expected("m") is None


def test_an_illegal_step_raises_changes_nothing_and_lists_the_last_events(harness):
    core = harness.on_cpu()
    with pytest.raises(
        InvalidTransition, match="executor: step ready is illegal in state idle"
    ) as e:
        core.handle(ExecutorReady("m@w"), now=1.0)
    assert "ExecutorReady(executor='m@w', offer=None)" in e.value.__notes__[0]
    assert core.executors["m@w"].has_room


# What the interface carries for policies still to come


class Batches(GpuScheduler):
    """Waits until 10.0, then drops the first request and runs two of the rest as one batch."""

    def on_queue(self, queue, now):
        pass

    def pick(self, now):
        return None

    def choose(self, now):
        queue = self.state.queues["m"]
        if now < 10.0:
            return WaitUntil(10.0)
        if queue.head is not None and queue.head.id == 1:
            return DropChoice("m", (1,), Reason.PREDICTED_LATE, "not worth it")
        return RunChoice("gpu", "m", 2) if len(queue) >= 2 else None


def test_a_policy_can_wait_drop_and_batch(harness):
    core = harness.build("m", gpu=Batches)
    harness.gpu()
    for _ in range(4):
        assert harness.arrive("m", 0.0) == []
    assert core.next_wakeup() == 10.0
    assert core.handle(Woken(), now=10.0) == [
        Reject(1, Reason.PREDICTED_LATE, 0.0, "not worth it"),
        Execute(1, "gpu", "m", (2, 3)),
    ]
    core.handle(ExecutionEnded(1, Result.OK), now=11.0)
    assert core.queues["m"].completed[Device.GPU] == 2


def test_a_policy_chooses_the_variant_of_a_cpu_executable(harness):
    variants = (Variant("good", 1.0), Variant("fast", 0.5))
    spec = ModelSpec("m", Sla(1.0), 100.0, 1000, variants=variants)
    core = harness.build(spec, cpu=ByLoad)
    harness.cpu("m@w", "m")
    (first,) = harness.arrive("m", 0.0)
    for _ in range(3):
        harness.arrive("m", 0.0)
    assert first == Execute(1, "m@w", "m", (1,), variant="good")
    (second,) = core.handle(ExecutionEnded(1, Result.OK), now=0.4)
    assert second == Execute(2, "m@w", "m", (2,), variant="fast")
    executor = core.executors["m@w"]
    core.handle(
        ExecutionEnded(2, Result.TIMEOUT), now=0.6
    )  # a lower bound, and its model's is more
    learned = [executor.expected(name) for name in ("m", "good", "fast")]
    assert learned == pytest.approx([0.4, 0.4, 0.2])
    core.handle(ExecutionEnded(3, Result.OK), now=0.7)
    assert executor.expected("fast") == pytest.approx(0.1)
    assert core.queues["m"].answers == {"good": 1, "fast": 1}


def test_a_fixed_in_flight_limit_does_not_follow_the_cores(harness):
    core = harness.build("m")
    spec = ExecutorSpec("m@w", Device.CPU, ("m",), cores=1.0, in_flight=3)
    core.handle(ExecutorAdded(spec), now=0.0)
    core.handle(ExecutorReady("m@w"), now=0.0)
    core.handle(CoresApplied("m@w", 6.0), now=0.1)
    started = [c for t in (1.0, 1.1, 1.2, 1.3) for c in harness.arrive("m", t)]
    assert [c.requests for c in started] == [(1,), (2,), (3,)]


def test_work_is_what_was_granted_while_it_ran(harness):
    """Cores that change in mid-execution make a request look neither larger nor smaller."""
    core = harness.on_cpu(cores=0.1)
    (execute,) = harness.arrive("m", 0.0)
    core.handle(CoresApplied("m@w", 1.0), now=1.0)
    core.handle(ExecutionEnded(execute.execution, Result.OK), now=1.4)
    assert core.executors["m@w"].work("m") == pytest.approx(0.1 * 1.0 + 1.0 * 0.4)


def test_a_part_of_the_slots_makes_no_request_slower(harness):
    core = harness.on_cpu(cores=4)
    harness.serve("m", 0.0, 0.1)
    executor = core.executors["m@w"]
    assert (executor.limit, executor.expected("m")) == (4, pytest.approx(0.1))
    core.handle(CoresApplied("m@w", 4.0, 0.05), now=0.2)
    assert (executor.limit, executor.expected("m")) == (1, pytest.approx(0.1))
    core.handle(CoresApplied("m@w", 4.0, 0.5), now=0.3)
    assert executor.limit == 2

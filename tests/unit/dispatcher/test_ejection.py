"""An executor that fails every request is left alone and tried again, if another can take over."""

import random
from collections import Counter

import pytest

from dispatcher.guards.outlier_ejection import ANSWERS, ERRORS, MAX_EJECTION_TIME
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorLost,
    ExecutorReady,
    Reason,
    Reject,
    Result,
    Woken,
)
from roma.domain.model import ModelSpec, Sla


def two(harness, *, bad=1, good=1, cpu="round_robin"):
    """Make a core with two executables of a model, with so many cores."""
    core = harness.build("m", cpu=cpu)
    harness.cpu("bad", "m", cores=bad)
    harness.cpu("good", "m", cores=good)
    return core


@pytest.fixture
def pair(harness):
    return two(harness)


def fail(harness, times, now=0.0, executor="bad"):
    """Feed requests until `executor` has failed so often; what others get is answered."""
    core = harness.core
    while times:
        (command,) = [c for c in harness.arrive("m", now) if isinstance(c, Execute)]
        bad = command.executor == executor
        core.handle(ExecutionEnded(command.execution, Result.ERROR if bad else Result.OK), now=now)
        times -= bad


def targets(harness, count, now):
    """Return where the next requests run, one after the other."""
    return [harness.serve("m", now, now).executor for _ in range(count)]


def test_errors_in_a_row_eject_and_fewer_do_not(harness, pair):
    fail(harness, ERRORS - 1)
    assert "bad" in targets(harness, 4, 0.0)  # and its answer forgives the errors before
    fail(harness, ERRORS, now=0.1)
    assert targets(harness, 4, 0.5) == ["good"] * 4
    assert pair.next_wakeup() == 1.1


def test_after_a_while_one_request_tries_it(harness, pair):
    fail(harness, ERRORS)
    pair.handle(Woken(), now=1.0)
    taken = [harness.arrive("m", 1.0)[0] for _ in range(2)]
    assert sorted(c.executor for c in taken) == ["bad", "good"]
    trial = next(c for c in taken if c.executor == "bad")
    pair.handle(ExecutionEnded(trial.execution, Result.ERROR), now=1.1)
    assert pair.executors["bad"].ejected  # at once, and for twice as long
    assert pair.next_wakeup() == pytest.approx(3.1)
    pair.handle(Woken(), now=3.2)
    assert "bad" in targets(harness, 4, 3.2)
    assert not pair.executors["bad"].probing


def test_a_trial_is_one_request_however_many_slots_there_are(harness):
    core = two(harness, bad=4)
    fail(harness, ERRORS)
    core.handle(Woken(), now=1.0)
    for _ in range(6):
        harness.arrive("m", 1.0)
    assert len(core.executors["bad"].running) == 1


def test_ejections_grow_no_longer_than_the_longest(harness, pair):
    now, spans = 0.0, []
    fail(harness, ERRORS)
    for _ in range(8):
        end = pair.next_wakeup()
        spans.append(end - now)
        now = end
        pair.handle(Woken(), now=now)
        fail(harness, 1, now=now)
    assert spans == pytest.approx(
        [1, 2, 4, 8, 16, MAX_EJECTION_TIME, MAX_EJECTION_TIME, MAX_EJECTION_TIME]
    )


def test_one_that_fails_for_days_is_ejected_as_long_each_time(harness, pair):
    fail(harness, ERRORS)
    for _ in range(1100):
        now = pair.next_wakeup()
        pair.handle(Woken(), now=now)
        fail(harness, 1, now=now)
    assert now > 9 * 3600
    assert pair.next_wakeup() == now + MAX_EJECTION_TIME
    assert not pair.live


def test_the_last_one_of_a_model_is_never_ejected(harness):
    core = harness.build("m")
    harness.cpu("bad", "m")
    fail(harness, 3 * ERRORS)
    assert core.executors["bad"].has_room


def test_it_is_needed_again_when_the_others_are_lost(harness, pair):
    fail(harness, ERRORS)
    assert not pair.executors["bad"].has_room
    pair.handle(ExecutorLost("good"), now=0.1)
    assert targets(harness, 2, 0.2) == ["bad"] * 2


def test_one_ejected_again_after_a_restart_is_needed_once(harness, pair):
    fail(harness, ERRORS)
    pair.handle(ExecutorLost("bad"), now=0.1)
    pair.handle(ExecutorReady("bad"), now=0.2)
    fail(harness, ERRORS, now=0.3)  # before the end of the first ejection
    assert len(pair._ejections.ends) == 2
    pair.handle(ExecutorLost("good"), now=0.4)
    assert pair.executors["bad"].probing
    assert targets(harness, 2, 0.5) == ["bad"] * 2


def test_one_that_restarted_is_trusted(harness, pair):
    fail(harness, ERRORS)
    pair.handle(ExecutorLost("bad"), now=0.1)
    pair.handle(ExecutorReady("bad"), now=0.2)
    assert "bad" in targets(harness, 2, 0.2)


def test_a_gpu_is_ejected_only_if_every_model_has_another_place(harness):
    core = harness.build("a", "b")
    harness.gpu()
    harness.cpu("a@w", "a")
    for _ in range(2 * ERRORS):
        for command in harness.arrive("b", 0.0):
            core.handle(ExecutionEnded(command.execution, Result.ERROR), now=0.0)
    assert core.executors["gpu"].has_room  # b has no other


@pytest.mark.parametrize("cpu", ["balance", "round_robin"])
def test_an_ejected_gpu_holds_no_request_back(harness, cpu):
    core = harness.build("m", gpu="gpu_savings_first", cpu=cpu, spill=0.2)
    harness.gpu()
    harness.cpu("m@w", "m")
    for _ in range(ERRORS):
        assert harness.serve("m", 0.0, 0.0, Result.ERROR).executor == "gpu"
    (first,) = harness.arrive("m", 0.01)
    assert first.executor == "m@w"
    for now in (0.02, 0.03):
        assert harness.arrive("m", now) == []
    (second,) = core.handle(ExecutionEnded(first.execution, Result.OK), now=0.04)
    assert second.requests == (first.requests[0] + 1,)  # the oldest: no GPU comes for it


@pytest.mark.parametrize("worked", [True, False])
def test_no_prediction_counts_on_one_that_is_ejected(harness, worked):
    core, now = harness.build(ModelSpec("m", Sla.within(1.0, 0.02), 4.0)), 0.0
    harness.cpu("bad", "m")
    harness.cpu("good", "m")
    fails = not worked
    while not core.executors["bad"].ejected:
        (command,) = harness.arrive("m", now)
        is_bad = command.executor == "bad"
        now += 0.01 if is_bad else 0.3
        result = Result.ERROR if is_bad and fails else Result.OK
        core.handle(ExecutionEnded(command.execution, result), now=now)
        fails = fails or is_bad
    commands = [command for _ in range(20) for command in harness.arrive("m", now)]
    refused = [command.reason for command in commands if isinstance(command, Reject)]
    # One runs on the other; those behind it start after 0.3, 0.6 … s and take 0.3 s.
    assert refused == [Reason.PREDICTED_LATE] * 16


def test_a_trial_ends_with_a_success_though_what_ran_before_had_succeeded_too(harness):
    core = two(harness, bad=8)
    running = [c for _ in range(9) for c in harness.arrive("m", 0.0)]
    bad = [c.execution for c in running if c.executor == "bad"]
    for execution in bad[:ERRORS]:
        core.handle(ExecutionEnded(execution, Result.ERROR), now=0.1)
    assert core.executors["bad"].ejected
    for execution in bad[ERRORS:]:  # they began before it was
        core.handle(ExecutionEnded(execution, Result.OK), now=0.2)
    assert core.executors["bad"].ejected
    core.handle(Woken(), now=1.1)
    (trial,) = [c for _ in range(2) for c in harness.arrive("m", 1.1) if c.executor == "bad"]
    core.handle(ExecutionEnded(trial.execution, Result.OK), now=1.2)
    assert not core.executors["bad"].probing


def run(harness, count, is_bad, now=0.0):
    """Feed requests; where one is bad, by its executor, a working server says so.

    Return how many ran where.
    """
    core, ran = harness.core, Counter()
    for _ in range(count):
        (command,) = [c for c in harness.arrive("m", now) if isinstance(c, Execute)]
        ran[command.executor] += 1
        result = Result.FAILURE if is_bad(command.executor) else Result.OK
        core.handle(ExecutionEnded(command.execution, result), now=now)
    return ran


def test_inputs_that_fail_everywhere_eject_nobody(harness, pair):
    run(harness, 100, lambda executor: True)
    assert not any(e.ejected for e in pair.executors)
    assert pair.queues["m"].failed == 100  # but nobody's promise was kept


@pytest.mark.parametrize("seed", range(20))
def test_inputs_that_fail_now_and_then_eject_nobody(harness, pair, seed):
    bad = random.Random(seed)
    run(harness, 500, lambda executor: bad.random() < 0.5)
    assert not any(e.ejected for e in pair.executors)


def test_one_that_fails_what_others_answer_is_ejected(harness, pair):
    run(harness, 2 * ANSWERS, lambda executor: executor == "bad")
    assert not pair.executors["bad"].ejected
    run(harness, 4 * ANSWERS, lambda executor: executor == "bad")
    assert pair.executors["bad"].ejected
    failed = pair.queues["m"].failed
    run(harness, 20, lambda executor: executor == "bad")
    assert pair.queues["m"].failed == failed
    # It is tried with one request, and ejected again if that fails too.
    pair.handle(Woken(), now=1.0)
    run(harness, 20, lambda executor: executor == "bad", now=1.0)
    assert (pair.queues["m"].failed, pair.executors["bad"].ejected) == (failed + 1, True)
    # One answer, and it is trusted.
    pair.handle(Woken(), now=4.0)
    run(harness, 20, lambda executor: False, now=4.0)
    assert "bad" in targets(harness, 4, 4.0)
    assert pair.executors["bad"].fault_share == 0


@pytest.fixture
def idle_pair(harness):
    """All requests go to the faster one, as far as the policy is asked."""
    return two(harness, bad=2, good=1.5, cpu="balance")


def test_one_that_idles_is_asked_before_another_is_ejected(harness, idle_pair):
    def is_bad(executor):
        return executor == "bad"

    assert run(harness, 18, is_bad) == {"bad": 18}  # the policy asks nobody else
    assert run(harness, 40, is_bad) == {"bad": 1, "good": 39}
    assert idle_pair.executors["bad"].ejected
    idle_pair.handle(Woken(), now=1.0)
    assert run(harness, 20, lambda executor: False, now=1.0) == {"bad": 20}


def test_one_that_idles_is_asked_little_where_the_inputs_fail(harness, idle_pair):
    ran = run(harness, 200, lambda executor: True)
    assert not any(e.ejected for e in idle_pair.executors)
    assert 0 < ran["good"] <= ANSWERS


def test_one_that_idles_is_asked_one_request_at_a_time(harness, idle_pair):
    run(harness, 18, lambda executor: True)
    assert [c.executor for _ in range(3) for c in harness.arrive("m", 0.0)] == [
        "good",
        "bad",
        "bad",
    ]


def test_what_idles_is_compared_with_a_gpu_too(harness):
    core = harness.build("m", gpu="gpu_savings_first", cpu="balance")
    harness.gpu()
    harness.cpu("cpu", "m")
    ran = run(harness, 60, lambda executor: executor == "gpu")
    assert core.executors["gpu"].ejected
    assert ran == {"gpu": 19, "cpu": 41}


def test_one_is_ejected_beside_another_that_came_after_its_first_failure(harness):
    core = harness.build("m")
    harness.cpu("bad", "m")
    run(harness, 5, lambda executor: True)
    harness.cpu("good", "m")
    run(harness, 6 * ANSWERS, lambda executor: executor == "bad")
    assert core.executors["bad"].ejected


def test_one_that_answers_nothing_is_no_reason_to_eject_another(harness):
    core = two(harness)
    first, second = [c for _ in range(2) for c in harness.arrive("m", 0.0)]
    bad = first if first.executor == "bad" else second  # the other one runs until the end
    for _ in range(100):
        core.handle(ExecutionEnded(bad.execution, Result.FAILURE), now=0.0)
        (bad,) = harness.arrive("m", 0.0)
        assert bad.executor == "bad"
    assert not core.executors["bad"].ejected


def test_what_fails_of_one_model_is_not_compared_with_another(harness):
    core = harness.build("a", "b")
    harness.gpu()
    harness.cpu("a@w", "a")
    harness.cpu("b@w", "b")
    for _ in range(60):
        running = [c for model in ("b", "a", "b") for c in harness.arrive(model, 0.0)]
        assert [c.executor for c in running] == ["gpu", "a@w", "b@w"]
        for command in running:
            result = Result.OK if command.model == "a" else Result.FAILURE
            core.handle(ExecutionEnded(command.execution, result), now=0.0)
    assert not any(e.ejected for e in core.executors)


def test_a_failure_that_is_explained_ends_a_row_of_errors(harness, pair):
    left = [*([Result.ERROR] * (ERRORS - 1)), Result.FAILURE, *([Result.ERROR] * (ERRORS - 1))]
    for _ in range(100):
        (command,) = harness.arrive("m", 0.0)
        result = left.pop() if left and command.executor == "bad" else Result.OK
        pair.handle(ExecutionEnded(command.execution, result), now=0.0)
    assert left == []
    assert not pair.executors["bad"].ejected

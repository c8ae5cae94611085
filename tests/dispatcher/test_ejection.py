"""An executor that fails every request is left alone and tried again, if another can take over."""

import pytest

from dispatcher.ejection import ERRORS, LONGEST
from roma.events import (
    Execute,
    ExecutionEnded,
    ExecutorLost,
    ExecutorReady,
    Result,
    Woken,
)


@pytest.fixture
def pair(desk):
    core = desk.build("m")
    desk.cpu("bad", "m")
    desk.cpu("good", "m")
    return core


def fail(desk, times, now=0.0, executor="bad"):
    """Feed requests until `executor` has failed so often; what others get is answered."""
    core = desk.core
    while times:
        (command,) = [c for c in desk.arrive("m", now) if isinstance(c, Execute)]
        bad = command.executor == executor
        core.handle(ExecutionEnded(command.execution, Result.ERROR if bad else Result.OK), now=now)
        times -= bad


def targets(desk, count, now):
    """Return where the next requests run, one after the other."""
    found = []
    for _ in range(count):
        (command,) = desk.arrive("m", now)
        found.append(command.executor)
        desk.core.handle(ExecutionEnded(command.execution, Result.OK), now=now)
    return found


def test_errors_in_a_row_eject_and_fewer_do_not(desk, pair):
    fail(desk, ERRORS - 1)
    assert "bad" in targets(desk, 4, 0.0)  # and its answer forgives the errors before
    fail(desk, ERRORS, now=0.1)
    assert targets(desk, 4, 0.5) == ["good"] * 4
    assert pair.next_wakeup() == 1.1


def test_after_a_while_one_request_tries_it(desk, pair):
    fail(desk, ERRORS)
    pair.handle(Woken(), now=1.0)
    taken = [desk.arrive("m", 1.0)[0] for _ in range(2)]
    assert sorted(c.executor for c in taken) == ["bad", "good"]
    trial = next(c for c in taken if c.executor == "bad")
    pair.handle(ExecutionEnded(trial.execution, Result.ERROR), now=1.1)
    assert pair.executors["bad"].is_ejected  # at once, and for twice as long
    assert pair.next_wakeup() == pytest.approx(3.1)
    pair.handle(Woken(), now=3.2)
    assert "bad" in targets(desk, 4, 3.2)
    assert not pair.executors["bad"].is_on_trial


def test_a_trial_is_one_request_however_many_slots_there_are(desk):
    core = desk.build("m")
    desk.cpu("bad", "m", cores=4)
    desk.cpu("good", "m", cores=1)
    fail(desk, ERRORS)
    core.handle(Woken(), now=1.0)
    for _ in range(6):
        desk.arrive("m", 1.0)
    assert len(core.executors["bad"].running) == 1


def test_ejections_grow_no_longer_than_the_longest(desk, pair):
    now, spans = 0.0, []
    fail(desk, ERRORS)
    for _ in range(8):
        end = pair.next_wakeup()
        spans.append(end - now)
        now = end
        pair.handle(Woken(), now=now)
        fail(desk, 1, now=now)
    assert spans == pytest.approx([1, 2, 4, 8, 16, LONGEST, LONGEST, LONGEST])


def test_the_last_one_of_a_model_is_never_ejected(desk):
    core = desk.build("m")
    desk.cpu("bad", "m")
    fail(desk, 3 * ERRORS)
    assert core.executors["bad"].has_room


def test_it_is_needed_again_when_the_others_are_lost(desk, pair):
    fail(desk, ERRORS)
    assert not pair.executors["bad"].has_room
    pair.handle(ExecutorLost("good"), now=0.1)
    assert targets(desk, 2, 0.2) == ["bad"] * 2


def test_one_that_restarted_is_trusted(desk, pair):
    fail(desk, ERRORS)
    pair.handle(ExecutorLost("bad"), now=0.1)
    pair.handle(ExecutorReady("bad"), now=0.2)
    assert "bad" in targets(desk, 2, 0.2)


def test_a_gpu_is_ejected_only_if_every_model_has_another_place(desk):
    core = desk.build("a", "b")
    desk.gpu()
    desk.cpu("a@w", "a")
    for _ in range(2 * ERRORS):
        for command in desk.arrive("b", 0.0):
            core.handle(ExecutionEnded(command.execution, Result.ERROR), now=0.0)
    assert core.executors["gpu"].has_room  # b has no other

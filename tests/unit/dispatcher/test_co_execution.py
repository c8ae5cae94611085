"""Segments of several batches at once: what the core keeps of them, and when it is over."""

import pytest

from dispatcher.core import Dispatcher
from dispatcher.schedulers.base import Batch, BatchGroup
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.domain.actions import Capabilities, ExecutionPart, ModelCapabilities, Segment
from roma.domain.events import (
    DiscardResults,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    Fail,
    LoadEnded,
    LoadModel,
    ModelRemoved,
    RequestArrived,
    RequestCancelled,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla
from tests.support.co_execution import Segments

OFFER = {
    "a": ModelCapabilities(1, 0.01, {1: 0.02, 2: 0.03}, segments=2),
    "b": ModelCapabilities(1, 0.01, {1: 0.02, 2: 0.04}, segments=3),
}
FIRST, SECOND = Segment(0, 1, 2), Segment(1, 2, 2)


class Core:
    """A core with one device that executes two batches at once, both models loaded."""

    def __init__(self):
        specs = [ModelSpec(name, Sla(1.0), deadline=9.0) for name in OFFER]
        self.core = Dispatcher(specs, gpu=Segments, cpu=CpuRoundRobin)
        self.now = 0.0
        self.requests = 0
        self.add("gpu")

    def add(self, name, *, pages=9):
        self(ExecutorAdded(ExecutorSpec(name, Device.GPU, ("a", "b"), is_planned=True)))
        self.ready(name, pages=pages)

    def ready(self, name, *, pages=9):
        for command in self(ExecutorReady(name, Capabilities(pages, OFFER, together=2))):
            assert isinstance(command, LoadModel)
            self(LoadEnded(command.load, True, 0.01))

    def __call__(self, event):
        return self.core.handle(event, now=self.now)

    def ask(self, model):
        self.requests += 1
        return self(RequestArrived(Request(self.requests, model, self.now, self.now + 9.0)))

    def ended(self, execution, result=Result.OK):
        return self(ExecutionEnded(execution, result, 0.01))


@pytest.fixture
def core():
    return Core()


def parts(commands):
    return [(c.execution, c.requests, c.part) for c in commands if isinstance(c, Execute)]


def one_and_two(core):
    """Let request 1, of a, run its first segment alone, then request 2, of b, together with it."""
    assert parts(core.ask("a")) == [(3, (1,), ExecutionPart(FIRST))]
    assert core.ask("b") == []
    both = core.ended(3)
    assert parts(both) == [
        (4, (1,), ExecutionPart(SECOND, continues=3, with_next=True)),
        (5, (2,), ExecutionPart(Segment(0, 1, 3))),
    ]


def test_requests_of_a_segment_wait_for_the_next_one_and_run_with_others(core):
    one_and_two(core)
    assert core.core.live == 2
    assert core.ended(4) == []  # the device is free when both have ended
    assert core.core.live == 1
    assert parts(core.ended(5)) == [(6, (2,), ExecutionPart(Segment(1, 2, 3), continues=5))]
    assert parts(core.ended(6)) == [(7, (2,), ExecutionPart(Segment(2, 3, 3), continues=6))]
    assert core.ended(7) == []
    assert core.core.live == 0
    assert not core.core.partial
    assert [queue.completed[Device.GPU] for queue in core.core.queues.values()] == [1, 1]


def test_executions_together_are_predicted_to_take_the_time_of_all(core):
    one_and_two(core)
    device = core.core.executors["gpu"].planned
    alone = (0.03 / 2, 0.04 / 3)
    assert device.infers.free_at(0.0) == pytest.approx(max(*alone, 0.6 * sum(alone)))


def test_a_part_says_nothing_about_the_time_of_a_whole_batch(core):
    one_and_two(core)
    core.ended(4)
    core.ended(5)
    device = core.core.executors["gpu"].planned
    assert device.execution("a", 2) == 0.03
    assert core.core.executors["gpu"].expected("a") is None


def test_what_nobody_waits_for_is_forgotten_on_the_device(core):
    core.ask("b")
    core(RequestCancelled(1))
    assert core.ended(3) == [DiscardResults("gpu", "b", 3)]
    assert not core.core.partial


def test_a_client_that_goes_leaves_the_batch_to_the_others(core):
    core.ask("b")
    for _ in range(2):
        core.ask("a")
    (_, a_1), (_, b_2) = [(c.execution, c) for c in core.ended(3)]
    assert (a_1.model, b_2.model) == ("b", "a")
    core(RequestCancelled(2))
    again = core.ended(a_1.execution) + core.ended(b_2.execution)
    (rest,) = [c for c in again if isinstance(c, Execute) and c.model == "a"]
    assert rest.requests == (2, 3), "rows keep their places"
    core.ended(rest.execution)
    assert core.core.queues["a"].completed[Device.GPU] == 1


def test_a_segment_that_missed_its_window_is_tried_again_and_keeps_what_was_done(core):
    one_and_two(core)
    core.ended(5)
    assert parts(core(ExecutionMissed(4))) == [
        (6, (1,), ExecutionPart(SECOND, continues=3, with_next=True)),
        (7, (2,), ExecutionPart(Segment(1, 2, 3), continues=5)),
    ]
    core(RequestCancelled(1))
    assert DiscardResults("gpu", "a", 3) in core(ExecutionMissed(6))


def test_a_segment_that_fails_fails_its_requests_alone(core):
    one_and_two(core)
    assert core.ended(4, Result.ERROR) == []
    assert parts(core.ended(5)) == [(6, (2,), ExecutionPart(Segment(1, 2, 3), continues=5))]
    assert core.core.queues["a"].failed == 1
    assert set(core.core.partial) == {5}


def test_what_a_lost_device_kept_is_lost_and_its_waiting_requests_begin_anew(core):
    core.add("spare", pages=0)  # without it the waiting ones are refused
    core.ask("b")
    core.ask("a")
    core.ended(3)
    core.ended(5)  # the first segment of 2; the second one of 1 runs
    assert set(core.core.partial) == {3, 5}
    assert [c.request for c in core(ExecutorLost("gpu")) if isinstance(c, Fail)] == [1]
    assert not core.core.partial
    core.ready("gpu")
    (begun,) = core.core.running()
    assert (begun.model, begun.part) == ("a", ExecutionPart(FIRST))


def test_a_model_that_is_removed_leaves_nothing_behind(core):
    one_and_two(core)
    core.ended(4)
    core.ended(5)
    commands = core(ModelRemoved("b"))  # while 6 runs: the device has nothing else
    assert not core.core.partial
    assert not [c for c in commands if isinstance(c, DiscardResults)]
    device = core.core.executors["gpu"].planned
    assert len(device.infers) == 0
    assert device.held["b"].uses == 0
    assert parts(core.ask("a")) == [(7, (3,), ExecutionPart(FIRST))]


def test_a_model_is_in_use_between_two_segments(core):
    core.ask("b")
    core.ask("a")
    core.ended(3)
    core.ended(5)
    device = core.core.executors["gpu"].planned
    assert {model: held.uses for model, held in device.held.items()} == {"a": 1, "b": 2}
    core.ended(4)  # both run on
    core.ended(7)
    core.ended(6)
    assert device.held["a"].uses == device.held["b"].uses == 0
    assert core.core.live == 0


def test_what_runs_on_cannot_be_continued_once_more(core):
    one_and_two(core)
    assert core.core.partial[3].is_running
    again = Batch("gpu", "a", (), 0.0, 1.0, segment=SECOND, continues=3)
    with pytest.raises(AssertionError, match="execution 3 is continued already"):
        core.core._executions.act(BatchGroup((again,), 0.01), 0.0)


def test_the_time_of_a_group_is_counted_as_long_as_one_of_it_runs(core):
    one_and_two(core)
    device = core.core.executors["gpu"].planned
    ends = device.infers.free_at(0.0)
    core.ended(4, Result.ERROR)
    assert device.infers.free_at(0.0) == ends > 0.0


def test_requests_that_wait_again_go_before_the_others(core):
    core.ask("a")
    for _ in range(4):
        core.ask("a")
    queue = core.core.queues["a"]
    assert list(queue.waiting) == [2, 3, 4, 5]
    core.ended(3)
    assert list(queue.waiting) == [4, 5], "1 and two others run"
    core.ended(5)  # the first segment of 2 and 3, while 4 runs
    assert list(queue.waiting) == [2, 3, 4, 5]
    assert queue.head.id == 2

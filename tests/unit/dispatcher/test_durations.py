"""What the core counts of an answered request: three durations, and what its executable did."""

import itertools
import math

import pytest

from dispatcher.live.admin.metrics import collect
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    ExecutorSuspected,
    ModelAdded,
    ModelRemoved,
    RequestCancelled,
    Result,
)
from roma.domain.model import Device, ExecutorSpec
from roma.domain.stats import Histogram, bounds_around, decades
from tests.unit.dispatcher.conftest import model


def started(commands):
    (command,) = [c for c in commands if isinstance(c, Execute)]
    return command.execution


def values(core, now=0.0):
    return {(s.name, *s.labels.values()): s.value for m in collect(core, now) for s in m.samples}


def test_a_sample_on_a_bound_is_within_it():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, math.nextafter(1.0, 2.0), 2.0, 3.0):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == pytest.approx(7.5)


def test_bounds_are_round_numbers():
    assert decades(0.01, 2.0) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    assert decades(0.03, 0.6) == [0.05, 0.1, 0.2, 0.5]


@pytest.mark.parametrize("promise", [0.0123, 0.1, 0.3, 0.5, 1.0, 7.77, 60.0])
def test_a_promise_is_a_bound_of_its_own_with_three_decades_below_and_one_above(promise):
    bounds = bounds_around(promise)
    assert promise in bounds
    assert list(bounds) == sorted(set(bounds))
    assert promise / 1000 <= bounds[0] <= promise / 400
    assert promise * 4 <= bounds[-1] <= promise * 10
    # No step is so wide that a percentile between two bounds says nothing.
    assert all(b / a <= 2.5000001 for a, b in itertools.pairwise(bounds))


def test_request_queue_and_execution_by_device(harness):
    core = harness.build(model("a", response_time=1.0), gpu="fcfs")
    harness.cpu("a@w", "a")
    first = started(harness.arrive("a", 0.0))
    harness.arrive("a", 0.25)  # waits for a second and runs for a half
    second = started(core.handle(ExecutionEnded(first, Result.OK), now=1.25))
    core.handle(ExecutionEnded(second, Result.OK), now=1.75)
    durations = core.queues["a"].cpu
    assert durations.request.total == 1.25 + 1.5
    assert durations.queue.total == 0.0 + 1.0
    assert durations.execution.total == 1.25 + 0.5
    assert sum(core.queues["a"].gpu.request.counts) == 0
    found = values(core)
    assert found["roma_queue_duration_seconds_bucket", "a", "cpu", "1.0"] == 2
    assert found["roma_execution_duration_seconds_bucket", "a", "cpu", "0.5"] == 1
    assert found["roma_request_duration_seconds_count", "a", "cpu"] == 2
    assert found["roma_request_duration_seconds_sum", "a", "cpu"] == 2.75
    assert ("roma_request_duration_seconds_count", "a", "gpu") not in found  # it has none


def test_what_is_within_the_promise_and_what_is_late_are_all_that_was_answered(harness):
    promise = 0.3
    core = harness.build(model("a", response_time=promise), gpu="fcfs")
    harness.gpu()
    now = 0.0
    for took in (0.1, promise, 0.30001, 5.0):
        now = round(now + 1)
        harness.serve("a", now, now + took)
        now += took
    queue = core.queues["a"]
    within = values(core)["roma_request_duration_seconds_bucket", "a", "gpu", "0.3"]
    assert within + queue.late == sum(queue.gpu.request.counts) == 4


def test_only_an_answer_that_took_the_input_says_how_fast_a_model_is(harness):
    core = harness.build(model("a"))
    harness.cpu("a@w", "a")
    for result in (Result.INVALID, Result.ERROR, Result.OK):
        harness.serve("a", 0.0, 0.0, result)
    execution = started(harness.arrive("a", 0.0))
    core.handle(RequestCancelled(harness.next_id), now=0.0)
    core.handle(ExecutionEnded(execution, Result.OK), now=0.0)
    queue = core.queues["a"]
    for histogram in (queue.cpu.request, queue.cpu.queue, queue.cpu.execution):
        assert sum(histogram.counts) == queue.completed[Device.CPU] - queue.invalid == 1


def test_an_executable_is_busy_while_at_least_one_execution_runs(harness):
    core = harness.build(model("a"))
    harness.cpu("a@w", "a", cores=2.0)
    executor = core.executors["a@w"]
    first = started(harness.arrive("a", 10.0))
    second = started(harness.arrive("a", 11.0))
    assert executor.busy(12.0) == 2.0
    core.handle(ExecutionEnded(first, Result.OK), now=13.0)
    assert executor.busy(14.0) == 4.0
    core.handle(ExecutionEnded(second, Result.ERROR), now=15.0)
    assert executor.busy(100.0) == 5.0
    started(harness.arrive("a", 200.0))
    core.handle(ExecutorLost("a@w"), now=203.0)
    assert executor.busy(300.0) == 8.0
    core.handle(ExecutorReady("a@w"), now=300.0)
    unreached = started(harness.arrive("a", 400.0))
    core.handle(ExecutionUnreachable(unreached), now=401.0)
    assert executor.busy(500.0) == 9.0
    assert values(core, 500.0)["roma_executable_busy_seconds_total", "a@w", "cpu"] == 9.0


def test_starts_and_losses_are_counted_and_a_doubt_is_neither(harness):
    core = harness.build(model("a"))
    core.handle(ExecutorAdded(ExecutorSpec("a@w", Device.CPU, ("a",))), now=0.0)
    counts = lambda: (core.executors["a@w"].starts, core.executors["a@w"].losses)  # noqa: E731
    assert counts() == (0, 0)
    core.handle(ExecutorReady("a@w"), now=0.0)
    core.handle(ExecutorSuspected("a@w"), now=1.0)
    core.handle(ExecutorReady("a@w"), now=1.0)
    assert counts() == (1, 0)
    core.handle(ExecutorLost("a@w"), now=2.0)
    core.handle(ExecutorReady("a@w"), now=3.0)
    assert counts() == (2, 1)
    found = values(core)
    assert found["roma_executable_starts_total", "a@w"] == 2
    assert found["roma_executable_losses_total", "a@w"] == 1


def test_a_model_that_goes_takes_its_series_along_and_starts_from_zero_if_it_comes_back(harness):
    core = harness.build(model("a"), model("b"))
    for name in "ab":
        harness.cpu(f"{name}@w", name)
        harness.serve(name, 0.0, 0.0)
    core.handle(ModelRemoved("a"), now=1.0)
    found = values(core, 1.0)
    assert {"a", "a@w"} & {label for _, *labels in found for label in labels} == set()
    assert found["roma_request_duration_seconds_count", "b", "cpu"] == 1
    core.handle(ModelAdded(model("a")), now=2.0)
    harness.cpu("a@w", "a", now=2.0)
    found = values(core, 2.0)
    assert found["roma_request_duration_seconds_count", "a", "cpu"] == 0
    assert found["roma_executable_starts_total", "a@w"] == 1


def test_what_a_removed_executable_answered_is_still_told(harness):
    core = harness.build(model("a"))
    harness.cpu("a@w", "a")
    harness.serve("a", 0.0, 0.0)
    core.handle(ExecutorRemoved("a@w"), now=1.0)
    assert values(core)["roma_request_duration_seconds_count", "a", "cpu"] == 1

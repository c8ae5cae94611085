"""Policies of variants, rule by rule (Fang et al., CIKM 2017): events in, commands out."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.schedulers.qos.base import ArrivalRate
from dispatcher.schedulers.qos.deadline_bins import DeadlineBins, Entry
from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.optimal import DRIFT, QosOpt, _drift
from dispatcher.state.device_state import (
    IDLE_PREDICTION_AGE,
    STALE_PREDICTION_AGE,
    DeviceState,
)
from dispatcher.state.utility import UTILITIES, linear, value
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutorLost,
    LoadEnded,
    LoadModel,
    Reason,
    Reject,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.variants import RequestOptions
from tests.support.variants import FULL, RUNS, VariantsHarness, busy, executes, with_device

# What an answer is worth (eq. 1)


@pytest.mark.parametrize(
    ("ended", "worth"), [(0.0, 1.0), (1.0, 1.0), (1.25, 0.75), (1.9, 0.1), (2.0, 0.0), (9.0, 0.0)]
)
def test_value_is_one_until_the_soft_deadline_and_falls_evenly_to_the_hard_one(ended, worth):
    assert value(linear, ended, 1.0, 2.0) == pytest.approx(worth)


@given(
    name=st.sampled_from(sorted(UTILITIES)),
    soft=st.floats(0, 10),
    more=st.floats(0, 10),
    ended=st.floats(0, 30),
    later=st.floats(0, 5),
)
def test_value_is_from_0_to_1_and_never_grows(name, soft, more, ended, later):
    utility = UTILITIES[name]
    worth = value(utility, ended, soft, soft + more)
    assert 0.0 <= worth <= 1.0
    assert value(utility, ended + later, soft, soft + more) <= worth + 1e-12


def test_quality_of_an_answer_is_accuracy_times_value():
    harness = with_device(Fixed)
    (first,) = harness.arrive(0.0, RequestOptions(soft=0.5, variant="tiny"))
    harness.end(first.execution, 1.25)  # half of the time from soft to hard deadline has passed
    queue = harness.core.queues["yolo"]
    assert queue.quality == pytest.approx(0.5 * 0.5)
    assert queue.answers == {"tiny": 1}


# Bins (Fig. 3)


@given(
    softs=st.lists(st.floats(0, 50), max_size=60),
    width=st.floats(0.01, 5),
    data=st.data(),
)
def test_bins_are_sorted_up_to_their_width(softs, width, data):
    bins = DeadlineBins(width)
    entries = [Entry(i, soft, soft + 1) for i, soft in enumerate(softs)]
    for entry in entries:
        bins.add(entry)
    gone = data.draw(st.sets(st.sampled_from(entries))) if entries else set()
    for entry in gone:
        assert bins.discard(entry)
        assert not bins.discard(entry)
    left = [e for e in entries if e not in gone]
    assert list(bins) == sorted(left, key=lambda e: e.soft // width)  # stable, as bins are
    assert bins.head() == next(iter(bins), None)
    ordered = [e.soft for e in bins]
    assert all(b >= a - width * (1 + 1e-9) for a, b in itertools.pairwise(ordered))


def test_sizes_of_bins_around_now():
    bins = DeadlineBins(0.2)
    for i, soft in enumerate((0.1, 0.5, 0.55, 0.9, 5.0)):
        bins.add(Entry(i, soft, soft + 1))
    # Bins 0, 2, 2, 4 and 25; now is in bin 2.
    assert bins.sizes(0.5, 2, 3) == [1, 0, 2, 0, 1]


def test_a_bin_is_made_again_after_it_was_emptied():
    bins = DeadlineBins(1.0)
    entry = Entry(1, 3.5, 4.0)
    bins.add(entry)
    bins.remove(entry)
    assert bins.head() is None
    bins.add(entry)
    assert list(bins) == [entry]
    bins.remove(entry)
    assert list(bins) == []


# fixed


@pytest.mark.parametrize(
    ("waiting", "any_batch", "runs", "size"),
    [
        (5, True, 5, 5),
        (5, False, 5, 8),  # what fills no measured batch runs in the next larger one
        (50, False, 32, 32),  # at most
    ],
)
def test_fixed_runs_everything_that_waits(waiting, any_batch, runs, size):
    chosen = busy(Fixed, waiting, until=0.1, any_batch=any_batch)
    assert (len(chosen.requests), chosen.size) == (runs, size)


# qos (eq. 2)


@pytest.mark.parametrize(
    ("waiting", "alpha", "beta", "size"),
    [
        # No arrivals count: B ≥ β·N.
        (10, 0.0, 1.0, 10),  # 16 is the smallest that is enough, and 10 are there
        (10, 0.0, 0.5, 8),
        (10, 0.0, 0.1, 1),
        # Only arrivals count, 11 in the last second: B = 1: 0.069 · 11 < 1.
        (10, 1.0, 1.0, 1),
        # 4 · (0.069 · 11) = 3.0 > 1; 4 · (0.106 · 11) = 4.7 > 2; 4 · 1.8 > 4; 4 · 3.1 > 8;
        # 4 · 5.6 > 16; 4 · 10.4 > 32: none is enough, the largest it is.
        (10, 1.0, 4.0, 10),
        # [0.5 · 0.165 · 11 + 0.5 · 10] · 0.5 = 2.95 ≤ 4, while 2 < [0.58 + 5] · 0.5 = 2.8.
        (10, 0.5, 0.5, 4),
    ],
)
def test_qos_takes_the_smallest_batch_that_keeps_up(waiting, alpha, beta, size):
    chosen = busy(Qos, waiting, until=0.9, alpha=alpha, beta=beta)
    assert len(chosen.requests) == size


def test_qos_counts_a_devices_share():
    # Two devices, one twice as fast: ξ = 2/3 and 1/3. N = 12, α = 0, β = 1: B ≥ 8 and B ≥ 4.
    harness = VariantsHarness(Qos, alpha=0.0, beta=1.0)
    harness.device("fast")
    harness.device("slow", factor=2.0)
    (on_fast,) = harness.arrive(0.0)
    (on_slow,) = harness.arrive(0.0)
    assert (on_fast.executor, on_slow.executor) == ("fast", "slow")
    for _ in range(12):
        harness.arrive(0.01)
    (first,) = harness.end(on_fast.execution, 0.05)
    assert len(first.requests) == 8
    (second,) = harness.end(on_slow.execution, 0.05)
    assert len(second.requests) == 2  # of the four that are left: 1.33 ≤ 2


@pytest.mark.parametrize(
    ("policy", "waiting", "until", "variant"),
    [
        # A small batch always: all are late by far, and the tiny one would be worth more.
        (Fixed, 7, 1.5, "full"),
        # 16 requests that came over 0.4 s: until the full model ends (0.508 s) all are in time.
        (Fixed, 16, 0.4, "full"),
        # After 1.2 s the full one's answers are on average 1.1 s old, which costs little.
        (Fixed, 16, 1.2, "full"),
        # After 2 s they are 1.5 s old on average, and the tiny one's 1.15 s: 0.5 · 16 against 0.5 · 13.
        (Fixed, 16, 1.98, "full"),
        (Fixed, 32, 1.9, "tiny"),
        (QosOpt, 4, 0.2, "full"),  # there is time
        (QosOpt, 150, 1.2, "tiny"),  # the backlog is hopeless
    ],
)
def test_a_batch_is_answered_by_whoever_gives_it_more_quality(policy, waiting, until, variant):
    assert busy(policy, waiting, until=until).variant == variant


def test_the_rate_is_of_the_window_and_of_a_second_at_least():
    rate = ArrivalRate(5.0)
    assert rate.at(0.0) == 0.0
    for i in range(20):
        rate.add(10.0 + i * 0.1)
    assert rate.at(10.2) == 20.0  # nothing is known of the time before: a second, then as it was
    assert rate.at(12.0) == 10.0
    assert rate.at(15.95) == pytest.approx(10 / 5)
    assert rate.at(30.0) == 0.0


# What clients ask


def test_a_pinned_variant_and_a_least_accuracy_are_kept():
    harness = with_device(Fixed)
    (first,) = harness.arrive(0.0)
    harness.arrive(0.1, RequestOptions(variant="tiny"))
    harness.arrive(0.2, RequestOptions(accuracy=0.9))
    (second,) = harness.end(first.execution, 0.3)
    assert (second.variant, second.requests) == ("tiny", (2,))
    (third,) = harness.end(second.execution, 0.4)
    assert (third.variant, third.requests) == ("full", (3,))


def test_requests_that_allow_a_variant_share_its_batch_in_order_of_deadline():
    harness = with_device(Fixed)
    (first,) = harness.arrive(0.0)
    harness.arrive(0.1)
    harness.arrive(0.1, RequestOptions(variant="full", soft=0.5))
    harness.arrive(0.1, RequestOptions(variant="tiny", soft=9.0))
    (second,) = harness.end(first.execution, 0.3)
    assert second.requests == (3, 2)


def test_the_earliest_soft_deadline_goes_first():
    harness = with_device(Fixed)
    (first,) = harness.arrive(0.0)
    harness.arrive(0.1, RequestOptions(soft=1.5))
    harness.arrive(0.2, RequestOptions(soft=0.5))
    (second,) = harness.end(first.execution, 0.3)
    assert second.requests == (3, 2)


def test_who_waits_for_a_variant_that_no_device_has_is_forgotten():
    harness = with_device(Fixed, pages=1, loaded=("full",))
    for i in range(200):
        harness.core.handle(Woken(), now=i * 0.1)
        harness.arrive(i * 0.1, RequestOptions(variant="tiny"), hard=0.5)
    (line,) = harness.core.policies.active[0].variant_queues["yolo"].lines.values()
    assert len(list(line)) <= 6


@pytest.mark.parametrize("loaded", [("full", "tiny"), ("tiny",)])
def test_qos_opt_lets_nobody_wait_for_the_small_variant(loaded):
    harness = with_device(QosOpt, loaded=loaded, pages=len(loaded))
    terms = RequestOptions(variant="tiny") if "full" in loaded else None
    assert [c.variant for c in harness.arrive(0.0, terms)] == ["tiny"]


def test_qos_opt_gives_up_nobody_where_nobody_is_behind():
    # Late requests that only the small one may serve; the many behind them are not for it.
    harness = with_device(QosOpt, any_batch=True, loaded=("tiny",), pages=1)
    (first,) = harness.arrive(0.0)
    for _ in range(3):
        harness.arrive(0.01, RequestOptions(variant="tiny", soft=0.02))
    for _ in range(900):
        harness.arrive(0.02, RequestOptions(variant="full"))
    commands = harness.core.handle(ExecutionEnded(first.execution, Result.OK), now=1.7)
    assert not [c for c in commands if isinstance(c, Reject)]
    assert [c.requests[0] for c in executes(commands)] == [2]


# Life of requests and devices


@pytest.mark.parametrize("policy", [Fixed, Qos, QosOpt])
def test_a_request_whose_hard_deadline_passes_in_the_queue_is_refused(policy):
    harness = with_device(policy)
    (first,) = harness.arrive(0.0)
    harness.arrive(0.0, hard=0.5)
    (reject,) = [c for c in harness.core.handle(Woken(), now=0.5) if isinstance(c, Reject)]
    assert (reject.request, reject.reason) == (2, Reason.DEADLINE)
    harness.arrive(0.6)
    (second,) = harness.end(first.execution, 0.7)
    assert second.requests == (3,)


@pytest.mark.parametrize("policy", [Fixed, Qos, QosOpt])
def test_a_device_that_was_slow_for_a_while_serves_again(policy):
    harness = with_device(policy, variants=(FULL,))
    now, slow = 0.0, 3.0  # the hard deadline is 2 s
    for _ in range(2):
        (chosen,) = harness.arrive(now)
        now += slow
        harness.core.handle(ExecutionEnded(chosen.execution, Result.OK, slow), now=now)
    (chosen,) = harness.arrive(now)
    assert chosen.window == (now, now)  # the device does not begin it
    harness.core.handle(RequestCancelled(3), now=now)
    harness.core.handle(ExecutionMissed(chosen.execution), now=now)
    now += STALE_PREDICTION_AGE + 0.1
    (chosen,) = harness.arrive(now)
    (chosen,) = harness.core.handle(ExecutionMissed(chosen.execution), now=now)
    assert chosen.window[1] > now


@pytest.mark.parametrize("policy", [Fixed, Qos, QosOpt])
def test_a_cancelled_request_is_in_no_batch(policy):
    harness = with_device(policy)
    (first,) = harness.arrive(0.0)
    harness.arrive(0.0)
    harness.arrive(0.0)
    harness.core.handle(RequestCancelled(2), now=0.1)
    (second,) = harness.end(first.execution, 0.2)
    assert second.requests == (3,)


def test_a_device_is_given_nothing_until_it_is_free():
    harness = with_device(Fixed)
    assert harness.arrive(0.0)
    assert not harness.arrive(0.06)
    assert not executes(harness.core.handle(Woken(), now=0.068))


def test_a_device_loads_what_it_lacks_the_most_accurate_first():
    harness = VariantsHarness(Fixed)
    loads = [c for c in harness.device(loaded=()) if isinstance(c, LoadModel)]
    assert [c.model for c in loads] == ["full", "tiny"]
    assert not harness.arrive(0.0)
    commands = harness.core.handle(LoadEnded(loads[1].load, True, 0.1), now=0.1)
    assert [c.variant for c in executes(commands)] == ["tiny"]


def test_a_variant_that_does_not_fit_is_not_loaded():
    harness = VariantsHarness(Fixed)
    loads = [c for c in harness.device(loaded=(), pages=1) if isinstance(c, LoadModel)]
    assert [c.model for c in loads] == ["full"]


def test_a_load_that_failed_is_tried_again_later():
    harness = VariantsHarness(Fixed)
    (load,) = [c for c in harness.device(loaded=("full",)) if isinstance(c, LoadModel)]
    assert not harness.core.handle(LoadEnded(load.load, False), now=0.1)
    wakeup = harness.core.next_wakeup()
    assert wakeup > 0.1
    (again,) = harness.core.handle(Woken(), now=wakeup)
    assert again.model == "tiny"


@pytest.mark.parametrize("policy", [Fixed, Qos, QosOpt])
def test_a_device_that_is_lost_and_back_serves_again(policy):
    harness = with_device(policy)
    harness.arrive(0.0)
    harness.core.handle(ExecutorLost("gpu"), now=0.01)
    harness.device(now=0.02)
    assert [c.variant for c in harness.arrive(0.03)] == ["full"]


# qos-opt


def test_qos_opt_never_waits_so_long_that_a_request_is_late():
    # A burst makes it expect more, and nothing comes any more.
    harness = VariantsHarness(QosOpt)
    harness.device("a")
    harness.device("b")
    for i in range(10):
        harness.arrive(i * 0.004)
    drain(harness, 0.036)
    queue = harness.core.queues["yolo"]
    assert queue.answers == {"full": 10}
    assert queue.quality == pytest.approx(10)


def test_qos_opt_refuses_the_oldest_of_a_hopeless_backlog():
    harness = with_device(QosOpt)
    (first,) = harness.arrive(0.0)
    for i in range(900):
        harness.arrive(0.05 + i * 0.002)
    commands = harness.core.handle(ExecutionEnded(first.execution, Result.OK), now=1.85)
    refused = [c.request for c in commands if isinstance(c, Reject)]
    (chosen,) = executes(commands)
    # In order of deadline, still: who is refused is older than who runs.
    assert refused == list(range(2, 2 + len(refused)))
    assert len(refused) >= 100
    assert chosen.requests[0] == 2 + len(refused)


def test_qos_opt_refuses_nobody_who_can_still_be_in_time():
    harness = with_device(QosOpt)
    (first,) = harness.arrive(0.0)
    for i in range(900):
        harness.arrive(0.05 + i * 0.0001)
    commands = harness.core.handle(ExecutionEnded(first.execution, Result.OK), now=0.2)
    assert [type(c) for c in commands] == [Execute]


def drain(harness, now):
    """Let devices run, as long as batches take, until nothing is left."""
    while harness.core.live:
        ends = [(e.started + RUNS[e.variant][e.size], e.id) for e in harness.core.running()]
        end, execution = min(ends, default=(math.inf, 0))
        wakeup = harness.core.next_wakeup()
        if wakeup is not None and wakeup < end:
            now = max(now, wakeup)
            harness.core.handle(Woken(), now=now)
        else:
            now = max(now, end)
            harness.end(execution, now)


def test_values_are_of_all_devices_that_there_are_and_made_when_they_are_needed():
    harness = VariantsHarness(QosOpt)
    harness.device("one")
    (policy,) = harness.core.policies.active
    assert not policy._values
    harness.arrive(0.0)
    (of_one,) = policy._values.values()
    harness.device("two", now=1.0)
    harness.arrive(1.0)
    (of_two,) = policy._values.values()
    assert of_two._costs._share == of_one._costs._share / 2


# How long batches take


class Timed:
    """A device whose batches take `factor` times what was offered."""

    def __init__(self):
        offers = {
            name: ModelCapabilities(1, 0.1, runs, any_batch=True) for name, runs in RUNS.items()
        }
        self.device = DeviceState(Capabilities(9, offers, ("full", "tiny")))
        self.executions = 0

    def run(self, model, batch, factor, now=0.0):
        self.executions += 1
        seconds = factor * self.device.offer.models[model].seconds(batch)
        self.device.begin(self.executions, model, batch, now)
        self.device.end(self.executions, model, batch, now, seconds)

    def slowness(self, model):
        offered = self.device.offer.models[model]
        return {round(self.device.typical(model, b) / offered.seconds(b), 9) for b in range(1, 33)}


def test_a_size_that_has_just_run_is_not_believed_to_be_faster_than_the_others():
    timed = Timed()
    for batch in (1, 2, 1, 3, 1, 1, 5, 1, 2, 1):
        timed.run("full", batch, 2.0)
    assert timed.slowness("full") == {2.0}
    timed.run("full", 8, 2.0)
    assert timed.slowness("full") == {2.0}
    assert timed.slowness("tiny") == {1.0}


def test_one_accident_changes_nothing():
    timed = Timed()
    for batch in (1, 8, 1, 8):
        timed.run("full", batch, 1.0)
    timed.run("full", 3, 50.0)
    assert timed.slowness("full") == {1.0}


def test_a_variant_that_was_slow_and_does_not_run_is_given_another_chance():
    timed = Timed()
    for _ in range(10):
        timed.run("full", 1, 4.0)
        timed.run("tiny", 1, 4.0)
    for i in range(10):
        timed.run("tiny", 4, 1.5, now=0.1 * i)
    assert timed.slowness("full") == {4.0}
    timed.run("tiny", 4, 1.5, now=0.1 + IDLE_PREDICTION_AGE)
    assert timed.slowness("full") == {1.5}
    timed.run("full", 2, 1.1, now=0.2 + IDLE_PREDICTION_AGE)
    assert timed.slowness("full") == {1.1}


def test_a_device_may_report_that_batches_took_no_time():
    assert [_drift(factor) for factor in (1.0, DRIFT**2, 1 / DRIFT)] == [0, 2, -1]
    assert _drift(0.0) == _drift(1e-9) < -1

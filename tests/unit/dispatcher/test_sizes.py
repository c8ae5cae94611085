"""Requests far larger than usual: refused if they would hold a slot for longer than is promised."""

import heapq
import random

import pytest

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from dispatcher.state.request_cost import LONGEST_WAIT, TRIAL_SHARE, LargeCosts
from roma.domain.events import (
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    Reason,
    Reject,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Priority, Request, Sla
from roma.tensors.inflate import MOST

SERVICE = 0.01
USUAL = 300
"""Bytes of one instance, which take `SERVICE`."""

LARGE = 6_700_000
PROMISE = 0.25


class Model:
    """A model with `slots`; a request takes `cost(bytes)` seconds, and nothing queues behind it."""

    def __init__(self, cost, *, slots=1, cores=1.0, promise=PROMISE):
        self.cost = cost
        self.now = 0.0
        spec = ModelSpec("m", Sla.within(promise, 0.02), 10 * promise)
        self.core = Dispatcher([spec], gpu=registry.GPU["roma"], cpu=registry.CPU["round_robin"])
        executor = ExecutorSpec("m@w", Device.CPU, ("m",), cores=cores, in_flight=slots)
        self.core.handle(ExecutorAdded(executor), now=0.0)
        self.core.handle(ExecutorReady("m@w"), now=0.0)
        self._last = 0

    @property
    def queue(self):
        return self.core.queues["m"]

    def arrive(self, size, *, priority=Priority.INTERACTIVE):
        self._last += 1
        request = Request(self._last, "m", self.now, self.now + 100, size=size, priority=priority)
        return self.core.handle(RequestArrived(request), now=self.now)

    def ask(self, size, *, after=0.1, result=Result.OK, takes=None, **options):
        """Send a request, and let it run to its end; return its refusal, or None."""
        self.now += after
        (command,) = self.arrive(size, **options)
        if isinstance(command, Reject):
            return command
        self.now += self.cost(size) if takes is None else takes
        self.core.handle(ExecutionEnded(command.execution, result), now=self.now)
        return None

    def known(self):
        """Answer 20 requests of the usual size; return itself."""
        for _ in range(20):
            assert self.ask(USUAL) is None
        return self


def proportional(size):
    return SERVICE * size / USUAL


def mostly_fixed(size):
    """Thirty thousand instances take 7.1 s, one takes 10 ms."""
    return SERVICE + (7.1 - SERVICE) * size / LARGE


@pytest.fixture
def model():
    return Model(mostly_fixed).known()


def test_a_batch_that_would_hold_the_model_is_refused_with_what_would_fit(model):
    refused = model.ask(LARGE)
    assert refused.reason is Reason.TOO_LARGE
    assert refused.retry_after is None  # waiting would not help
    # 300 bytes are in an octave that ends at 512; cost is unknown beyond, so it is as per byte.
    usual = mostly_fixed(USUAL)
    predicted, fits = usual * LARGE / 512, int(PROMISE / usual * 512)
    assert refused.detail == (
        f"model m: predicted service of {LARGE} bytes {predicted:.3f} s > response_time "
        f"{PROMISE:.3f} s; at most {fits} bytes fit"
    )
    assert model.ask(fits) is None
    # Its client alone is the reason: no promise was broken.
    assert (model.queue.rejected[Reason.TOO_LARGE], model.queue.rejected_by_client) == (1, 1)


def test_what_fits_is_learnt_until_it_is_what_the_promise_allows(model):
    fits = 0
    while (refused := model.ask(LARGE)) is not None:
        grown = int(refused.detail.split("at most ")[1].split()[0])
        if grown <= fits * 1.01:
            break
        fits = grown
        assert model.ask(fits) is None, fits
        assert model.ask(fits) is None, fits
        assert model.cost(fits) < 2 * PROMISE
    assert PROMISE / 2 < model.cost(fits) < PROMISE * 1.2


def test_half_of_all_requests_do_not_raise_what_fits(model):
    for _ in range(300):
        refused = model.ask(LARGE)
        fits = int(refused.detail.split("at most ")[1].split()[0])
        assert model.cost(fits) < PROMISE * 1.2
        assert model.ask(fits) is None
        assert model.ask(USUAL) is None


def test_a_size_that_becomes_usual_does_not_make_larger_ones_cheap(model):
    for _ in range(300):
        assert model.ask(12_000) is None
    assert model.queue.sizes.upper == 2**14
    assert model.ask(LARGE).reason is Reason.TOO_LARGE


def test_a_request_of_five_usual_sizes_is_never_refused():
    model = Model(
        lambda size: SERVICE if size <= USUAL else 40 * SERVICE
    ).known()  # however it behaves
    assert all(model.ask(5 * USUAL) is None for _ in range(20))
    assert model.ask(LARGE).reason is Reason.TOO_LARGE


def test_a_long_request_that_is_in_time_is_not_refused():
    model = Model(proportional).known()
    assert model.ask(int(0.9 * PROMISE / SERVICE * USUAL)) is None


def test_five_usual_services_are_not_too_long_however_tight_the_promise():
    model = Model(
        lambda size: SERVICE if size <= USUAL else 4 * SERVICE, promise=1.5 * SERVICE
    ).known()
    model.now += LONGEST_WAIT  # its size suggests more than it takes: the first one is tried
    assert all(model.ask(10 * USUAL) is None for _ in range(20))


def test_five_services_stay_those_of_usual_requests():
    """Longer ones, of which many came just now, do not make still longer ones usual."""
    model = Model(
        lambda size: SERVICE if size <= USUAL else size * 1.3e-5, promise=3 * SERVICE
    ).known()
    model.now += LONGEST_WAIT
    assert all(model.ask(3000) is None for _ in range(9))
    assert model.ask(12_000).reason is Reason.TOO_LARGE


def test_low_priority_makes_no_size_usual():
    model = Model(lambda size: SERVICE, slots=2, cores=2).known()
    for _ in range(200):
        assert model.ask(20_000, priority=Priority.LOW) is None
    assert model.queue.sizes.upper == 512


@pytest.mark.parametrize("seed", range(5))
def test_a_workload_of_many_sizes_is_served_whole(seed):
    """Sizes of a lognormal, nine tenths within a factor of ten; costs have a fixed part."""
    rng, model = random.Random(seed), Model(lambda size: SERVICE * (0.7 + 0.3 * size / 1000))
    sizes = [min(20_000, int(rng.lognormvariate(6.9, 0.7))) for _ in range(3000)]
    assert [size for size in sizes if model.ask(size) is not None] == []


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
def test_two_usual_sizes_are_both_served(share):
    """Sixty-four times the bytes for twice the time: refused until tried, at most for a while."""
    rng = random.Random(1)
    model = Model(lambda size: SERVICE * (1 if size < 1000 else 2))
    asked = [64 * USUAL if rng.random() < share else USUAL for _ in range(20_000)]
    refused = [model.now for size in asked if model.ask(size, after=0.04) is not None]
    # No more is believed of it than that it takes 64 times as long.
    believed = 64 * SERVICE
    assert model.now > 2 * believed / TRIAL_SHARE
    assert not refused or refused[-1] < believed / TRIAL_SHARE


def test_one_stall_does_not_make_a_size_too_large(model):
    big = 4000
    for _ in range(5):
        assert model.ask(big) is None
    model.cost = lambda size: 3.0
    assert model.ask(big) is None
    model.cost = mostly_fixed
    assert all(model.ask(big) is None for _ in range(20))


def test_who_only_sends_refused_sizes_does_not_make_them_usual(model):
    assert all(model.ask(LARGE, after=0.001) is not None for _ in range(500))
    assert model.ask(USUAL) is None
    assert model.queue.sizes.upper == 512


def test_other_sizes_become_usual_when_most_requests_have_them(model):
    for _ in range(200):
        assert model.ask(2000) is None
    assert (model.queue.sizes.lower, model.queue.sizes.upper) == (1024, 2048)


def test_what_is_refused_is_tried_again_once_in_a_while(model):
    assert model.ask(LARGE) is not None
    assert model.ask(LARGE, after=LONGEST_WAIT) is None
    took = mostly_fixed(LARGE)
    assert model.ask(LARGE, after=0.9 * took / TRIAL_SHARE) is not None
    assert model.ask(LARGE, after=0.2 * took / TRIAL_SHARE) is None


@pytest.mark.parametrize(("slots", "runs"), [(1, False), (2, True)])
def test_low_priority_runs_where_a_slot_stays_free(slots, runs):
    model = Model(mostly_fixed, slots=slots, cores=slots).known()
    model.now += 0.1
    (command,) = model.arrive(LARGE, priority=Priority.LOW)
    assert isinstance(command, Execute) is runs
    if runs:
        model.now += 0.1
        assert model.arrive(LARGE, priority=Priority.LOW) == []  # it would take the last one
        (others,) = model.arrive(USUAL)
        assert isinstance(others, Execute)


def test_low_priority_of_usual_size_is_not_kept_from_the_last_slot(model):
    model.now += 0.1
    (command,) = model.arrive(USUAL, priority=Priority.LOW)
    assert isinstance(command, Execute)


@pytest.mark.parametrize("size", [LARGE, MOST])
def test_nothing_is_refused_before_anything_was_measured(size):
    model = Model(mostly_fixed)
    assert model.ask(size) is None
    assert model.ask(USUAL) is None


@pytest.mark.parametrize("result", [Result.TIMEOUT, Result.FAILURE, Result.ERROR, Result.INVALID])
def test_a_request_that_fails_tells_that_its_size_takes_at_least_as_long(model, result):
    for _ in range(2):
        assert model.ask(4000, result=result, takes=30.0) is None
    assert model.ask(4000).reason is Reason.TOO_LARGE


def test_a_request_that_fails_at_once_does_not_make_its_size_cheap(model):
    for _ in range(2):
        model.ask(4000, takes=30.0)
    model.now += 30.0 / TRIAL_SHARE  # the next one is a trial
    for _ in range(20):
        model.ask(4000, result=Result.INVALID, takes=0.001)
    assert model.ask(4000).reason is Reason.TOO_LARGE


@pytest.mark.parametrize("size", [300, 10_000, 200_000, 1_000_000])
@pytest.mark.parametrize("result", [Result.INVALID, Result.ERROR, Result.OK])
@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_tiny_requests_do_not_make_the_usual_ones_too_large(size, result, pause):
    """A probe that posts `{}` all night, refused or answered, changes nothing for clients."""
    model = Model(lambda bytes_: 0.02)
    for _ in range(100):
        assert model.ask(size) is None
    for _ in range(1000):
        model.ask(2, result=result, after=0.001, takes=0.001)
        model.now += pause
    assert [model.ask(size) for _ in range(50)] == [None] * 50


def test_fewer_cores_for_a_moment_make_nothing_too_large(model):
    for _ in range(5):
        assert model.ask(6000, takes=0.2) is None
    model.core.handle(CoresApplied("m@w", 0.2), now=model.now)
    assert model.ask(6000, takes=1.0) is None


def test_an_executable_that_was_never_measured_does_not_let_all_in(model):
    spare = ExecutorSpec("spare@w", Device.CPU, ("m",), cores=1.0)
    model.core.handle(ExecutorAdded(spare), now=model.now)
    model.core.handle(ExecutorReady("spare@w"), now=model.now)
    assert model.ask(LARGE).reason is Reason.TOO_LARGE


def test_large_requests_that_came_first_are_known():
    """After a start: what is answered before anything is known is not forgotten."""
    model = Model(lambda size: 0.02)
    for size in (USUAL, 40_000, USUAL, 40_000):
        assert model.ask(size) is None
    for _ in range(20):
        assert model.ask(USUAL) is None
    assert model.ask(40_000) is None


def test_a_size_takes_no_longer_than_a_larger_one():
    costs = LargeCosts()
    assert costs.of(8000, usual=1.0, upper=512) == pytest.approx(8000 / 512)
    for _ in range(2):
        costs.record(30_000, 3.0, usual=1.0, upper=512)
    assert costs.of(8000, usual=1.0, upper=512) == pytest.approx(3.0 * 2**15 / 30_000)


class Others:
    """Requests of usual size that come as a Poisson process; every second one batch beside them."""

    def __init__(self, rate, *, batch, seed):
        self.model = Model(mostly_fixed).known()
        self.events, rng, now = [], random.Random(seed), self.model.now
        self.ends = now + 200
        while now < self.ends:
            now += rng.expovariate(rate)
            heapq.heappush(self.events, (now, len(self.events), USUAL, None))
        for second in range(int(self.model.now) + 1, int(self.ends)) if batch else ():
            heapq.heappush(self.events, (second, len(self.events), batch, None))
        self.late = self.count = 0

    def share(self):
        """Return the share of the usual requests that are late, refused or unanswered."""
        model, number, arrived = self.model, len(self.events), {}
        while self.events:
            now, _, size, execution = heapq.heappop(self.events)
            model.now = now
            if execution is None:
                commands = model.arrive(size)
                arrived[model._last] = (now, size)
                self.count += size == USUAL
            else:
                (done,) = execution.requests
                began, size = arrived.pop(done)
                self.late += size == USUAL and now - began > PROMISE
                ended = ExecutionEnded(execution.execution, Result.OK)
                commands = model.core.handle(ended, now=now)
            for command in commands:
                if isinstance(command, Reject):
                    self.late += arrived.pop(command.request)[1] == USUAL
                    continue
                (request,) = command.requests
                number += 1
                ends = now + model.cost(arrived[request][1])
                heapq.heappush(self.events, (ends, number, 0, command))
        return self.late / self.count


@pytest.mark.parametrize("rate", [0.5, 60], ids=["idle", "busy"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 5))]
)
def test_batches_that_would_hold_a_model_cost_the_others_half_a_point_at_most(rate, seed):
    without = Others(rate, batch=0, seed=seed).share()
    assert Others(rate, batch=LARGE, seed=seed).share() <= without + 0.005

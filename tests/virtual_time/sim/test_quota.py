"""QuotaCpu against CFS timelines worked out by hand, and against a naive reference."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roma.lab.sim.quota import QuotaCpu
from tests.support.examples import examples


def run(cpu, starts, *, resizes=(), until=math.inf):
    """Return the ends by execution; `starts` are (time, work), `resizes` (time, cores)."""
    events = [(t, "start", i, work) for i, (t, work) in enumerate(starts)]
    events += [(t, "resize", -1, cores) for t, cores in resizes]
    events.sort(key=lambda e: e[0])
    ends = {}
    while True:
        end = cpu.next_end()
        upcoming = events[0][0] if events else math.inf
        if end is not None and end[0] <= upcoming:
            if end[0] > until:
                break
            ends[cpu.end(end[0])] = end[0]
        elif events:
            time, kind, i, value = events.pop(0)
            if kind == "start":
                cpu.start(i, value, time)
            else:
                cpu.resize(value, time)
        else:
            break
    if until < math.inf:
        cpu.advance(until)
    return ends


HALF = {"cores": 0.5}
"""0.05 core-seconds a period."""
NOTICE = {"notice": 0.002}


@pytest.mark.parametrize(
    ("options", "starts", "resizes", "ends", "throttled"),
    [
        # Within its quota a request runs at full speed.
        (HALF, [(0.0, 0.03)], [], [0.03], 0),
        # A spent quota stalls until the boundary refills it: runs 0-0.05, 0.1-0.15, 0.2-0.22.
        (HALF, [(0.0, 0.12)], [], [0.22], 2),
        # What ends exactly with its quota does not wait for the next period.
        (HALF, [(0.0, 0.05)], [], [0.05], 0),
        # A request that starts while stalled waits for the boundary.
        (HALF, [(0.0, 0.05), (0.06, 0.01)], [], [0.05, 0.11], 1),
        # Two cores for two requests: alone until 0.01, then one each: the first has 0.02 left.
        ({"cores": 2.0}, [(0.0, 0.03), (0.01, 0.05)], [], [0.03, 0.06], 0),
        # One core of quota shared by two: both spend it at 2 cores, gone at 0.05.
        ({"cores": 1.0}, [(0.0, 0.06), (0.0, 0.08)], [], [0.11, 0.13], 1),
        # A machine with fewer cores than requests is shared out.
        ({"cores": 4.0, "limit": 1.0}, [(0.0, 0.02), (0.0, 0.04)], [], [0.04, 0.06], 0),
        # Four cores at once: 0.1 core-s are gone after 0.025 s; the rest comes at 0.1.
        ({"cores": 1.0, "parallelism": 4.0}, [(0.0, 0.14)], [], [0.11], 1),
        ({"cores": 8.0, "parallelism": 4.0, "limit": 2.0}, [(0.0, 0.06)], [], [0.03], 0),
        # A resize refills at once and ends a stall. Stalled from 0.05; at 0.07 a new quota of
        # 0.02: runs 0.07-0.09, stalls, 0.1-0.12 …
        (HALF, [(0.0, 0.08)], [(0.07, 0.2)], [0.11], 2),
        # A burst carries over what was left. Idle for two periods: with burst 1 the budget is
        # 0.1, twice the quota.
        (HALF | {"burst": 0.0}, [(0.2, 0.08)], [], [0.33], 1),
        (HALF | {"burst": 0.5}, [(0.2, 0.08)], [], [0.305], 1),
        (HALF | {"burst": 1.0}, [(0.2, 0.08)], [], [0.28], 0),
        # A burst is bounded, and a resize fills the bucket.
        (HALF | {"burst": 1.0}, [(50.0, 0.1 + 0.01)], [], [50.11], 0),
        (HALF | {"burst": 1.0}, [(0.2, 0.06)], [(0.2, 0.5)], [0.26], 0),
        # 0.1 until 0.15; then a quota of 0.02 brings twice that until 0.19, and one more at 0.2.
        (HALF | {"burst": 1.0}, [(0.0, 0.15)], [(0.15, 0.2)], [0.21], 2),
        # A core runs on for 2 ms: until 0.052, and from 0.1 with 0.048 and 2 ms more.
        (HALF | NOTICE, [(0.0, 0.06)], [], [0.108], 1),
        (HALF | NOTICE, [(0.0, 0.103)], [], [0.201], 2),
        # Two cores use 4 ms more than the quota, until 0.027; from 0.1 both have 25 ms.
        (HALF | NOTICE, [(0.0, 0.06), (0.0, 0.06)], [], [0.208, 0.208], 2),
        # The debt of two cores is paid by the period that the next request meets: 0.046, 2 ms more.
        (HALF | NOTICE, [(0.0, 0.027), (0.0, 0.027), (0.1, 0.05)], [], [0.027, 0.027, 0.202], 1),
    ],
)
def test_a_timeline_worked_out_by_hand(options, starts, resizes, ends, throttled):
    cpu = QuotaCpu(period=0.1, **options)
    found = run(cpu, starts, resizes=resizes)
    assert found == pytest.approx(dict(enumerate(ends)))
    assert (cpu.usage, cpu.throttled) == (pytest.approx(sum(w for _, w in starts)), throttled)


def test_periods_count_only_while_something_runs():
    cpu = QuotaCpu(1.0, period=0.1)
    run(cpu, [(0.05, 0.2), (7.0, 0.05)], until=9.0)
    assert cpu.periods == 2
    assert cpu.throttled == 0


def test_clearing_forgets_what_ran_and_keeps_what_it_used():
    cpu = QuotaCpu(1.0, period=0.1)
    cpu.start(1, 0.5, 0.0)
    cpu.clear(0.03)
    assert cpu.next_end() is None
    assert cpu.usage == pytest.approx(0.03)
    cpu.start(2, 0.01, 0.03)
    assert cpu.next_end() == (pytest.approx(0.04), 2)


# Against a reference that knows no algebra: small steps.

STEP = 1e-4
PERIOD = 0.05


def naive(cores, starts, resizes, parallelism, burst, notice, steps):
    """Step through `steps` of 0.1 ms; return the ends by request, and the usage."""
    quota = budget = cores * PERIOD
    left, ends, usage = {}, {}, 0.0
    at = {round(t / STEP): c for t, c in resizes}
    begins = {}
    for i, (t, work) in enumerate(starts):
        begins.setdefault(round(t / STEP), []).append((i, work))
    per_period = round(PERIOD / STEP)
    for k in range(steps):
        if k and k % per_period == 0:
            budget = min(budget + quota, quota * (1 + burst))
        if k in at:
            quota = at[k] * PERIOD
            budget = quota * (1 + burst)
        left.update(begins.get(k, ()))
        if left:
            rate = len(left) * parallelism
            spent = min(rate * STEP, max(0.0, budget + notice * rate))
            budget -= spent
            usage += spent
            each = spent / len(left)
            left = {i: w - each for i, w in left.items()}
            for i in [i for i, w in left.items() if w <= 1e-9]:
                ends[i] = (k + 1) * STEP
                del left[i]
    return ends, usage


times = st.integers(0, 3000).map(lambda k: k * STEP)
cores = st.integers(2, 40).map(lambda k: k / 10)


@settings(max_examples=examples(60), deadline=None)
@given(
    cores,
    st.lists(st.tuples(times, st.integers(10, 1500).map(lambda k: k * STEP)), max_size=6),
    st.lists(st.tuples(times, cores), max_size=2, unique_by=lambda r: r[0]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.002]),
)
def test_it_does_what_small_steps_do(cores, starts, resizes, parallelism, burst, notice):
    until = 1.0
    steps = round(until / STEP)
    expected, usage = naive(cores, starts, resizes, parallelism, burst, notice, steps)
    cpu = QuotaCpu(cores, period=PERIOD, parallelism=parallelism, burst=burst, notice=notice)
    ends = run(cpu, starts, resizes=resizes, until=until)
    # A step is as long as one of the reference's ends is off, for every request that ends; an end
    # at the edge of a spent quota falls a whole period apart.
    slack = STEP * (2 + len(starts) * parallelism) + 1e-9
    # What is left of a request at a stall is work: alone it takes longer the slower it can run.
    rest = slack / min(1.0, parallelism)
    assert cpu.usage == pytest.approx(usage, abs=slack * len(starts) * parallelism + 1e-9)
    assert set(ends) >= {i for i, end in expected.items() if end < until - PERIOD - slack}
    for i in set(ends) & set(expected):
        assert abs(ends[i] - expected[i]) <= slack or near_a_stall(ends[i], expected[i], rest)


def near_a_stall(a, b, rest):
    """Whether one waited for the next period with next to nothing left to do."""
    early, late = sorted((a, b))
    return late - PERIOD * math.floor((late + STEP / 2) / PERIOD) <= rest and late - early <= PERIOD


@settings(deadline=None)
@given(
    cores,
    st.lists(st.tuples(times, st.integers(10, 5000).map(lambda k: k * STEP)), max_size=10),
    st.lists(st.tuples(times, cores), max_size=3),
    st.sampled_from([0.0, 1.0]),
)
def test_it_never_uses_more_than_was_granted_nor_than_was_asked(cores, starts, resizes, burst):
    until = 2.0
    cpu = QuotaCpu(cores, period=PERIOD, burst=burst)
    ends = run(cpu, starts, resizes=resizes, until=until)
    most = max([cores, *(c for _, c in resizes)])
    # Every resize may fill the bucket, and so may a pause before the first request.
    filled = (1 + burst) * (1 + len(resizes))
    assert cpu.usage <= most * PERIOD * (until / PERIOD + filled) + 1e-9
    assert cpu.usage <= sum(work for _, work in starts) + 1e-9
    assert cpu.usage >= sum(starts[i][1] for i in ends) - 1e-9
    for i, end in ends.items():
        assert end >= starts[i][0] + starts[i][1] - 1e-9
    assert cpu.throttled <= cpu.periods + 1 + len(resizes)

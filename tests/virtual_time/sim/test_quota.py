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


def test_within_its_quota_a_request_runs_at_full_speed():
    cpu = QuotaCpu(0.5, period=0.1)
    assert run(cpu, [(0.0, 0.03)]) == {0: pytest.approx(0.03)}
    assert (cpu.usage, cpu.periods, cpu.throttled) == (pytest.approx(0.03), 0, 0)


def test_a_spent_quota_stalls_until_the_boundary_refills_it():
    # 0.05 core-s per 0.1 s: runs 0-0.05, stalls, 0.1-0.15, stalls, 0.2-0.22.
    cpu = QuotaCpu(0.5, period=0.1)
    assert run(cpu, [(0.0, 0.12)]) == {0: pytest.approx(0.22)}
    assert (cpu.usage, cpu.periods, cpu.throttled) == (pytest.approx(0.12), 2, 2)


def test_what_ends_exactly_with_its_quota_does_not_wait_for_the_next_period():
    cpu = QuotaCpu(0.5, period=0.1)
    assert run(cpu, [(0.0, 0.05)]) == {0: pytest.approx(0.05)}
    assert cpu.throttled == 0


def test_a_request_that_starts_while_stalled_waits_for_the_boundary():
    cpu = QuotaCpu(0.5, period=0.1)
    ends = run(cpu, [(0.0, 0.05), (0.06, 0.01)])
    assert ends == {0: pytest.approx(0.05), 1: pytest.approx(0.11)}
    assert cpu.throttled == 1


def test_several_requests_share_fairly():
    # Two cores for two requests: alone until 0.01, then one core each: the first has 0.02 left.
    cpu = QuotaCpu(2.0, period=0.1)
    ends = run(cpu, [(0.0, 0.03), (0.01, 0.05)])
    assert ends == {0: pytest.approx(0.03), 1: pytest.approx(0.06)}
    # One core of quota shared by two: both spend it at 2 cores, gone at 0.05.
    cpu = QuotaCpu(1.0, period=0.1)
    ends = run(cpu, [(0.0, 0.06), (0.0, 0.08)])
    assert ends == {0: pytest.approx(0.11), 1: pytest.approx(0.13)}
    assert (cpu.usage, cpu.throttled) == (pytest.approx(0.14), 1)


def test_a_machine_with_fewer_cores_than_requests_is_shared_out():
    cpu = QuotaCpu(4.0, period=0.1, limit=1.0)
    ends = run(cpu, [(0.0, 0.02), (0.0, 0.04)])
    assert ends == {0: pytest.approx(0.04), 1: pytest.approx(0.06)}


def test_parallelism_spends_the_quota_faster():
    # Four cores at once: 0.1 core-s are gone after 0.025 s; the rest comes at 0.1.
    cpu = QuotaCpu(1.0, period=0.1, parallelism=4.0)
    assert run(cpu, [(0.0, 0.14)]) == {0: pytest.approx(0.11)}
    cpu = QuotaCpu(8.0, period=0.1, parallelism=4.0, limit=2.0)
    assert run(cpu, [(0.0, 0.06)]) == {0: pytest.approx(0.03)}


def test_a_resize_refills_at_once_and_ends_a_stall():
    # Stalled from 0.05; at 0.07 a new quota of 0.02: runs 0.07-0.09, stalls, 0.1-0.12 …
    cpu = QuotaCpu(0.5, period=0.1)
    ends = run(cpu, [(0.0, 0.08)], resizes=[(0.07, 0.2)])
    assert ends == {0: pytest.approx(0.11)}
    assert cpu.throttled == 2
    assert cpu.usage == pytest.approx(0.08)


def test_a_burst_carries_over_what_was_left():
    # Idle for two periods: with burst 1 the budget is 0.1, twice the quota of 0.05.
    for burst, end in [(0.0, 0.33), (0.5, 0.305), (1.0, 0.28)]:
        cpu = QuotaCpu(0.5, period=0.1, burst=burst)
        assert run(cpu, [(0.2, 0.08)]) == {0: pytest.approx(end)}, burst


def test_a_burst_is_bounded_and_a_resize_fills_the_bucket():
    cpu = QuotaCpu(0.5, period=0.1, burst=1.0)
    assert run(cpu, [(50.0, 0.1 + 0.01)]) == {0: pytest.approx(50.11)}
    cpu = QuotaCpu(0.5, period=0.1, burst=1.0)
    assert run(cpu, [(0.2, 0.06)], resizes=[(0.2, 0.5)]) == {0: pytest.approx(0.26)}
    # 0.1 until 0.15; then a quota of 0.02 brings twice that until 0.19, and one more at 0.2.
    cpu = QuotaCpu(0.5, period=0.1, burst=1.0)
    ends = run(cpu, [(0.0, 0.15)], resizes=[(0.15, 0.2)])
    assert ends == {0: pytest.approx(0.21)}


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


def naive(cores, starts, resizes, parallelism, burst, steps):
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
            spent = min(len(left) * parallelism * STEP, budget)
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
)
def test_it_does_what_small_steps_do(cores, starts, resizes, parallelism, burst):
    until = 1.0
    expected, usage = naive(cores, starts, resizes, parallelism, burst, round(until / STEP))
    cpu = QuotaCpu(cores, period=PERIOD, parallelism=parallelism, burst=burst)
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

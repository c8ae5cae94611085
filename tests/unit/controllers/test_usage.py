"""The law `usage`, and the history of what an executable used."""

from dataclasses import replace

import pytest

from controllers.history import Used, length, mean, remember
from controllers.usage import UsageGains, usage_step
from tests.support.periods import BASE, BOUNDS


def used(*periods):
    history = ()
    for dt, cores in periods:
        history = remember(history, Used(dt, cores), 5.0)
    return history


def test_a_history_keeps_the_periods_of_its_span_newest_first():
    history = used(*((1.0, float(i)) for i in range(9)))
    assert [u.cores for u in history] == [8.0, 7.0, 6.0, 5.0, 4.0]


@pytest.mark.parametrize("dt", [0.99, 1.0, 1.01])
def test_a_tick_a_little_early_or_late_changes_no_history(dt):
    assert len(used(*[(dt, 1.0)] * 20)) == 5


def test_a_period_longer_than_the_span_is_all_there_is():
    assert used((1.0, 1.0), (60.0, 2.0)) == (Used(60.0, 2.0),)


def test_a_long_period_weighs_more_in_the_mean():
    history = used((1.0, 0.0), (3.0, 4.0))
    assert length(history) == 4.0
    assert mean(history) == 3.0


def run_usage(measurements, state=None, **gains):
    """Feed periods whose `applied` follows the demand; return the demands and the state."""
    cores, seen = measurements[0].applied, []
    for m in measurements:
        now = replace(m, applied=cores)
        demand, state = usage_step(UsageGains(**gains), state, now, **BOUNDS)
        cores = demand.cores
        seen.append(cores)
    return seen, state


def test_usage_aims_for_its_share_of_the_allocation():
    seen, _ = run_usage([replace(BASE, usage=0.9)], stabilization=0.0)
    assert seen == [pytest.approx(0.9 / 0.6)]


def test_usage_is_cores_not_core_seconds():
    demand, _ = usage_step(UsageGains(), None, replace(BASE, usage=1.8), **{**BOUNDS, "dt": 2.0})
    assert demand.cores == pytest.approx(0.9 / 0.6)


def test_usage_rises_at_once_and_falls_after_its_stabilisation():
    load = [replace(BASE, usage=u) for u in [1.8] + [0.3] * 25]
    seen, _ = run_usage(load)
    assert seen[0] == pytest.approx(3.0)
    assert seen[1:20] == [pytest.approx(3.0)] * 19
    assert seen[20:] == [pytest.approx(0.5)] * 6


def test_usage_keeps_the_start_for_one_stabilisation():
    """Kubernetes: what runs is the first recommendation; nothing is taken away on no evidence."""
    seen, _ = run_usage([replace(BASE, usage=0.06, applied=2.0)] * 25)
    assert seen[18] == 2.0
    assert seen[19] == pytest.approx(0.1)  # it stood for a period before the first tick


@pytest.mark.parametrize(("utilisation", "moves"), [(0.55, False), (0.65, False), (0.7, True)])
def test_usage_tolerates_a_tenth_of_deviation(utilisation, moves):
    (cores,), _ = run_usage([replace(BASE, usage=utilisation)], stabilization=0.0)
    assert (cores != 1.0) is moves


def test_usage_averages_over_its_window():
    load = [replace(BASE, usage=u) for u in [0.6] * 3 + [1.5]]
    seen, _ = run_usage(load, window=3.0)
    assert seen[-1] == pytest.approx((0.6 + 0.6 + 1.5) / 3 / 0.6)


def test_usage_rises_by_one_over_its_target_at_most_however_long_the_queue():
    """Its trap: usage never exceeds what is applied, so a burst is met step by step."""
    cores, state, seen = 0.2, None, []
    for _ in range(5):
        m = replace(BASE, waiting=10_000, oldest_age=9.0, applied=cores, usage=cores)
        demand, state = usage_step(UsageGains(), state, m, **BOUNDS)
        seen.append(demand.cores / cores)
        cores = demand.cores
    assert seen == [pytest.approx(1 / 0.6)] * 5


def test_usage_forgets_what_cannot_win_again():
    """The state stays small over a day, whatever is recommended."""
    state = None
    for i in range(2000):
        m = replace(BASE, usage=(i * 7919 % 100) / 50)
        _, state = usage_step(UsageGains(stabilization=300.0), state, m, **BOUNDS)
    assert len(state.recommended) < 50
    ages = [r.age for r in state.recommended]
    assert ages == sorted(ages)
    assert max(ages) < 300

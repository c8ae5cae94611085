"""A model's accounts against numpy."""

import math

import numpy as np
import pytest

from roma.domain.events import Reason
from roma.lab.sim.tally import RunningMoments, Tally


def tally(**kwargs):
    return Tally(sla=0.3, **kwargs)


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_numpys(seed):
    values = np.random.default_rng(seed).lognormal(-2, 1, 5000)
    moments = RunningMoments()
    for value in values:
        moments.add(float(value))
    assert moments.count == 5000
    assert moments.mean == pytest.approx(values.mean(), rel=1e-12)
    assert moments.deviation == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert moments.worst == values.max()


def test_moments_of_nothing_and_of_one_number():
    moments = RunningMoments()
    assert (moments.count, moments.mean, moments.deviation, moments.worst) == (0, 0, 0, 0)
    moments.add(0.5)
    assert (moments.mean, moments.deviation, moments.worst) == (0.5, 0, 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_percentiles_are_within_two_percent(seed):
    values = np.random.default_rng(seed).lognormal(-2, 1.5, 20_000)
    totals = tally()
    for i, value in enumerate(values):
        totals.answered(float(value), i / 100)
    for q in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = np.quantile(values, q, method="inverted_cdf")
        assert totals.quantile(q) == pytest.approx(exact, rel=0.02), q
    assert totals.late == int((values > 0.3).sum())


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_the_means_of_each_second(seed):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 60, 500))
    values = rng.lognormal(-1.5, 1, 500)
    totals = tally(series=[])
    for time, value in zip(times, values, strict=True):
        totals.answered(float(value), float(time))
    totals.close()
    means = {s: values[np.floor(times) == s].mean() for s in np.unique(np.floor(times))}
    assert [s for s, _ in totals.series] == [int(s) for s in means]
    assert [m for _, m in totals.series] == pytest.approx(list(means.values()))
    assert totals.windows.count == len(means)
    assert totals.windows_over == sum(m > 0.3 for m in means.values())
    assert totals.windows.mean == pytest.approx(np.mean(list(means.values())))


def test_what_was_refused_or_failed_enters_its_second_as_twice_its_promise_or_its_age():
    totals = tally(series=[])
    totals.answered(0.2, 0.5)
    totals.refused(Reason.DEADLINE, 0.4, 0.7)
    totals.failure(4.0, 5.0)
    totals.close()
    assert totals.series == [(0, pytest.approx(0.4)), (5, 1.0)]
    assert (totals.windows_over, totals.failed, totals.rejected.total()) == (2, 1, 1)
    assert (totals.response.count, totals.late) == (1, 0)


def test_a_tie_with_the_promise_is_kept():
    totals = tally()
    totals.answered(0.3, 0.0)
    totals.close()
    assert (totals.late, totals.windows_over) == (0, 0)


def test_nothing_has_no_percentile_and_zero_is_a_response_time():
    totals = tally()
    assert totals.quantile(0.5) is None
    totals.answered(0.0, 0.0)
    totals.answered(0.1, 0.0)
    assert totals.quantile(0.5) == 0.0
    assert math.isclose(totals.quantile(1.0), 0.1, rel_tol=0.02)


def test_closing_twice_counts_once():
    totals = tally()
    totals.answered(0.1, 0.0)
    totals.close()
    totals.close()
    assert totals.windows.count == 1

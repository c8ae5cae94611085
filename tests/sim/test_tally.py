"""A model's books against numpy."""

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
    books = tally()
    for i, value in enumerate(values):
        books.answered(float(value), i / 100)
    for q in (0.01, 0.5, 0.95, 0.99, 1.0):
        exact = np.quantile(values, q, method="inverted_cdf")
        assert books.quantile(q) == pytest.approx(exact, rel=0.02), q
    assert books.late == int((values > 0.3).sum())


@pytest.mark.parametrize("seed", range(3))
def test_windows_are_the_means_of_each_second(seed):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 60, 500))
    values = rng.lognormal(-1.5, 1, 500)
    books = tally(series=[])
    for time, value in zip(times, values, strict=True):
        books.answered(float(value), float(time))
    books.close()
    means = {s: values[np.floor(times) == s].mean() for s in np.unique(np.floor(times))}
    assert [s for s, _ in books.series] == [int(s) for s in means]
    assert [m for _, m in books.series] == pytest.approx(list(means.values()))
    assert books.windows.count == len(means)
    assert books.windows_over == sum(m > 0.3 for m in means.values())
    assert books.windows.mean == pytest.approx(np.mean(list(means.values())))


def test_what_was_refused_or_failed_enters_its_second_as_twice_its_promise_or_its_age():
    books = tally(series=[])
    books.answered(0.2, 0.5)
    books.refused(Reason.DEADLINE, 0.4, 0.7)
    books.failure(4.0, 5.0)
    books.close()
    assert books.series == [(0, pytest.approx(0.4)), (5, 1.0)]
    assert (books.windows_over, books.failed, books.rejected.total()) == (2, 1, 1)
    assert (books.response.count, books.late) == (1, 0)


def test_a_tie_with_the_promise_is_kept():
    books = tally()
    books.answered(0.3, 0.0)
    books.close()
    assert (books.late, books.windows_over) == (0, 0)


def test_nothing_has_no_percentile_and_zero_is_a_response_time():
    books = tally()
    assert books.quantile(0.5) is None
    books.answered(0.0, 0.0)
    books.answered(0.1, 0.0)
    assert books.quantile(0.5) == 0.0
    assert math.isclose(books.quantile(1.0), 0.1, rel_tol=0.02)


def test_closing_twice_counts_once():
    books = tally()
    books.answered(0.1, 0.0)
    books.close()
    books.close()
    assert books.windows.count == 1

"""Buckets: the worst of each, nothing where nothing was recorded, and no request twice."""

import numpy as np
import pytest

from roma.ui.report.columns import Grid, Span

NAN = np.nan


def spans(*pairs):
    return (np.array(column, float) for column in zip(*pairs, strict=True))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(0, 2, 1.0), (2, 4, 5.0), (4, 6, 2.0)], [1, 5, 2]),
        ([(0, 1, 1.0), (1, 2, 9.0), (2, 4, 5.0), (4, 6, NAN)], [9, 5, NAN]),
        ([(0, 2, 1.0), (4, 6, 2.0)], [1, NAN, 2]),  # a gap stays one
        ([(0, 2.1, 1.0), (2.1, 4, 5.0), (4, 6, 2.0)], [1, 5, 2]),  # jitter reaches no further
        ([(0, 3, 1.0), (3, 6, 2.0)], [1, 2, 2]),  # what covers two buckets is in both
    ],
)
def test_each_bucket_shows_its_worst(samples, expected):
    grid = Grid(Span(0, 6), points=3)
    assert grid.step == 2
    np.testing.assert_array_equal(grid.worst(*spans(*samples)), expected)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(0, 2, 10), (2, 4, 20), (4, 6, 0)], [5, 10, 0]),
        ([(0, 1, 10), (1, 3, 20), (3, 6, 30)], [10, 10, 10]),  # 20 in 2 s: half in each bucket
        ([(0, 2, 10), (4, 6, 4)], [5, NAN, 2]),
        ([(1, 2, 10), (2, 4, 2), (4, 6, 4)], [10, 1, 2]),  # of the second that is covered
        ([(1.8, 2, 10), (2, 4, 2), (4, 6, 4)], [NAN, 1, 2]),  # a sliver of time gives no rate
    ],
)
def test_rates_are_of_the_time_that_is_covered(samples, expected):
    grid = Grid(Span(0, 6), points=3)
    np.testing.assert_allclose(grid.rate(*spans(*samples)), expected)


def test_no_step_is_shorter_than_a_second_and_a_long_run_has_no_more_points():
    assert len(Grid(Span(0, 30), points=480).edges) == 31
    assert len(Grid(Span(0, 86_400), points=480).edges) <= 481
    assert len(Grid(Span(5, 5), points=480).edges) == 2

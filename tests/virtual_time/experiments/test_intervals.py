"""Intervals of means: Student's t for any number of values."""

import math
from statistics import fmean, stdev

import pytest
from scipy.special import stdtrit

from roma.lab.experiments.intervals import interval


@pytest.mark.parametrize("count", [*range(2, 16), 30, 1000])
def test_an_interval_is_of_95_percent_for_any_number_of_values(count):
    values = [float(n * n % 7) for n in range(count)]
    mean, half = interval(values)
    assert mean == fmean(values)
    t = stdtrit(count - 1, 0.975)
    assert half == pytest.approx(t * stdev(values) / math.sqrt(count), rel=2e-3)


def test_one_value_has_no_interval():
    assert interval([3.0]) == (3.0, None)

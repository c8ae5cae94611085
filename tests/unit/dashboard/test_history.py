"""Rings of samples: what comes out is what went in, and memory does not grow."""

import math

import numpy as np
import pytest

from roma.ui.dashboard.history import COLUMNS, LENGTH, History


def sample(**values):
    return [values.get(name, math.nan) for name in COLUMNS]


def filled(seconds, *, length=10, models=("m",), total=10_000):
    history = History(length, total)
    for second in range(seconds):
        history.add(float(second), {m: sample(arrivals=second, waiting=second) for m in models})
    return history


@pytest.mark.parametrize("seconds", [0, 1, 9, 10, 11, 25])
def test_the_last_samples_come_oldest_first_however_often_the_ring_went_round(seconds):
    history = filled(seconds)
    expected = list(range(max(0, seconds - 10), seconds))
    if seconds == 0:
        assert history.series("m") is None
        return
    series = history.series("m")
    assert list(series["at"]) == expected
    assert list(series["arrivals"]) == expected
    assert history.samples == len(expected)
    assert list(history.last("m", "arrivals", 3)) == expected[-3:]
    assert list(history.last("m", "arrivals", 3, skip=2)) == expected[:-2][-3:]


def test_several_samples_become_one_by_their_worst_or_their_mean():
    history = filled(7)
    series = history.series("m", every=3)
    assert list(series["at"]) == [
        3.0,
        6.0,
    ]  # the newest are whole, the oldest odd ones are left out
    assert list(series["arrivals"]) == [2.0, 5.0]
    assert list(series["waiting"]) == [3.0, 6.0]
    assert np.isnan(series["response_time"]).all()


def test_what_is_unknown_in_a_part_of_a_bucket_does_not_hide_the_rest():
    history = History(10, 1000)
    for second, value in enumerate([math.nan, 4.0, 2.0]):
        history.add(float(second), {"m": sample(response_time=value, used=value)})
    series = history.series("m", every=3)
    assert list(series["response_time"]) == [4.0]
    assert list(series["used"]) == [3.0]


def test_a_model_that_comes_later_has_no_past_and_one_that_goes_is_forgotten():
    history = filled(5)
    history.add(5.0, {"m": sample(arrivals=5), "n": sample(arrivals=50)})
    assert list(history.series("m")["arrivals"]) == [0, 1, 2, 3, 4, 5]
    new = history.series("n")["arrivals"]
    assert np.isnan(new[:-1]).all()
    assert new[-1] == 50
    history.add(6.0, {"n": sample(arrivals=51)})
    assert history.series("m") is None
    assert list(history.series("n")["arrivals"][-2:]) == [50, 51]
    assert list(history.models) == ["n"]


def test_a_fleet_keeps_fewer_seconds_not_more_memory():
    few, many = (
        filled(30, length=20, total=100),
        filled(30, length=20, models="abcdefghij", total=100),
    )
    assert few.samples == 20
    assert many.samples == 10
    assert list(many.series("j")["arrivals"]) == list(range(20, 30))
    assert LENGTH == 900


def test_a_ring_that_shrinks_keeps_the_newest():
    history = filled(15, length=20, total=60)
    history.add(15.0, {m: sample(arrivals=15) for m in "mabcde"})  # 60 // 6 = 10 each
    assert list(history.series("m")["arrivals"]) == [6, 7, 8, 9, 10, 11, 12, 13, 14, 15][-10:]
    assert list(history.series("m")["at"])[-1] == 15.0
    history.add(16.0, {m: sample(arrivals=16) for m in "mabcde"})
    assert list(history.last("m", "arrivals", 2)) == [15, 16]

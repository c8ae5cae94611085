"""What a backlog is worth: known optima, bounds, and values that follow while they are used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.schedulers.qos.values import BRIEF, BURSTS, BatchOption, Traffic, Values
from dispatcher.state.utility import linear
from tests.support.variants import FULL, RUNS, TINY


def values(**more):
    actions = [
        BatchOption(size, v.accuracy, seconds)
        for v in (FULL, TINY)
        for size, seconds in RUNS[v.name].items()
    ]
    return Values(actions, linear, soft=1.0, hard=2.0, **more)


def solved(known, rate):
    """Ask until nothing gets better."""
    return [known.at(rate) for _ in range(20)][-1]


@given(rate=st.floats(1e-3, 1e4), brief=st.floats(0.0, 10.0))
def test_arrivals_have_the_right_mean_and_variance_and_are_none_at_least(rate, brief):
    numbers, chances = zip(*Traffic(rate, brief).during(0.5), strict=True)
    assert min(numbers) >= 0
    assert min(chances) >= -1e-9
    assert sum(chances) == pytest.approx(1)
    found = sum(n * c for n, c in zip(numbers, chances, strict=True))
    assert found == pytest.approx(rate / 2)
    spread = sum(c * (n - found) ** 2 for n, c in zip(numbers, chances, strict=True))
    assert spread == pytest.approx(rate / 2 + (BURSTS * rate / 2) ** 2 * (1 + brief / 0.5))


def test_shorter_steps_do_not_smooth_bursts_away():
    """Ten devices decide ten times as often as one; what comes within a second is the same."""
    traffic = solved(values(), 50.0).traffic
    for count in (1, 10, 100):
        numbers, chances = zip(*traffic.during(1.0 / count), strict=True)
        mean = sum(n * c for n, c in zip(numbers, chances, strict=True))
        variance = count * sum(c * (n - mean) ** 2 for n, c in zip(numbers, chances, strict=True))
        assert variance > BRIEF * (BURSTS * traffic.rate) ** 2


def test_a_device_that_is_hardly_asked_makes_full_quality_of_every_request():
    worth = solved(values(), 3.0)
    assert worth.gain == pytest.approx(worth.traffic.rate, rel=0.01)


def test_a_device_that_is_asked_too_much_makes_what_the_small_variant_can():
    worth = solved(values(), 1e9)
    assert worth.gain == pytest.approx(0.5 * 32 / 0.244, rel=0.02)


def test_more_requests_are_worth_more_but_each_one_less():
    worth = solved(values(), 25.0)
    found = [worth.of(x) for x in (0, 5, 10, 20, 30)]
    assert found == sorted(found)
    gains = [(b - a) / n for a, b, n in zip(found, found[1:], (5, 5, 10, 10), strict=False)]
    assert all(gain <= 1.001 for gain in gains)
    assert gains[-1] < gains[0]


def test_ten_devices_make_ten_times_as_much_of_ten_times_the_load():
    one, ten = solved(values(), 12.0), solved(values(share=0.1), 120.0)
    assert ten.traffic.rate == pytest.approx(10 * one.traffic.rate)
    assert ten.gain == pytest.approx(10 * one.gain, rel=0.02)


def test_a_rate_is_solved_once():
    found = values()
    solved(found, 12.0)
    assert found.at(12.0) is found.at(12.1)
    assert found.at(12.0) is not solved(found, 24.0)


def test_a_new_rate_begins_with_its_neighbours_values_and_gets_better():
    """A decision must not wait for its values, nor cost answers because they are not the best."""
    found = values()
    known = solved(found, 80.0)
    assert found.at(100.0) is known
    gains = [found.at(100.0).gain for _ in range(20)]
    best = solved(values(), 100.0)
    assert gains == pytest.approx(sorted(gains))
    assert 0.98 * best.gain < gains[0] < 0.9999 * best.gain
    assert gains[-1] == pytest.approx(best.gain)
    assert found.at(100.0).of(20) == pytest.approx(best.of(20))


def test_values_begin_with_those_of_nearly_the_same():
    before = values()
    known = solved(before, 100.0)
    after = values(share=0.9, like=before)
    assert after.at(100.0) is known
    assert solved(after, 100.0).gain == pytest.approx(solved(values(share=0.9), 100.0).gain)


def test_they_are_those_of_the_same_rate_whatever_the_grid():
    """Ten devices can do ten times as much: the same place on their grid is ten times the rate."""
    before = values()
    known = {rate: solved(before, rate) for rate in (30.0, 100.0)}
    after = values(share=0.1, like=before)
    assert [after.at(rate) for rate in known] == list(known.values())


def test_who_asks_first_does_not_look_ahead_and_waits_for_no_evaluation():
    found = values()
    first = found.at(100.0)
    assert first.gain == 0.0
    assert {first.of(backlog) for backlog in (0, 5, 1e9)} == {0.0}
    assert 0.0 < found.at(100.0).gain < solved(values(), 100.0).gain
    assert solved(found, 100.0).gain == pytest.approx(solved(values(), 100.0).gain)


def test_values_of_other_options_are_none_to_begin_with():
    before = Values([BatchOption(1, 1.0, 0.1)], linear, soft=1.0, hard=2.0)
    before.at(5.0)
    assert values(like=before).at(100.0).gain == values().at(100.0).gain

import itertools
import math
import statistics
from collections import Counter

import pytest

from roma.workload.arrivals import (
    Process,
    Profile,
    RateStep,
    from_counts,
    from_timestamps,
    mmpp_stream,
    paced_stream,
    poisson,
    send_times,
)
from roma.workload.errors import WorkloadError

STEADY = Profile((RateStep(50.0, 200.0),))


def within(times: list[float], start: float, end: float) -> int:
    return sum(start <= time < end for time in times)


def test_a_profile_is_parsed_as_in_the_paper() -> None:
    profile = Profile.parse("20-20-80-80-20", step=35)
    assert [step.rate for step in profile.steps] == [20, 20, 80, 80, 20]
    assert profile.duration == 175
    assert profile.requests == 35 * 220


@pytest.mark.parametrize(
    ("text", "step", "message"),
    [
        ("20-fast-80", 35, "profile '20-fast-80', step 2: 'fast' is not a rate"),
        ("20--80", 35, "step 2: '' is not a rate"),
        ("", 35, "step 1: '' is not a rate"),
        ("20-nan", 35, "rate nan req/s: must be a finite number >= 0"),
        ("inf", 35, "rate inf req/s: must be a finite number >= 0"),
        ("20", 0, "step length 0 s: must be a finite number > 0"),
        ("20", math.inf, "step length inf s: must be a finite number > 0"),
    ],
)
def test_a_bad_profile_names_value_and_bound(text: str, step: float, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Profile.parse(text, step=step)


def test_a_negative_rate_and_an_empty_profile_are_refused() -> None:
    with pytest.raises(WorkloadError, match="rate -1 req/s: must be a finite number >= 0"):
        RateStep(-1.0, 1.0)
    with pytest.raises(WorkloadError, match="0 steps"):
        Profile(())


def test_paced_times_by_hand() -> None:
    profile = Profile.parse("2-0-4", step=1)
    assert list(paced_stream(profile)) == [0.0, 0.5, 2.0, 2.25, 2.5, 2.75]
    assert list(paced_stream(profile, phase=0.5)) == [0.25, 0.75, 2.125, 2.375, 2.625, 2.875]


def test_a_paced_gap_spans_a_change_of_rate() -> None:
    # The second request is due at 1.0 of the integral: 0.5 in the first step, 0.5 in the second.
    changing = Profile((RateStep(0.5, 1.0), RateStep(2.0, 1.0)))
    assert list(paced_stream(changing)) == [0.0, 1.25, 1.75]


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_have_the_mean_and_deviation_of_an_exponential(seed: int) -> None:
    times = poisson(STEADY, seed=seed)
    assert len(times) == pytest.approx(10_000, abs=4 * math.sqrt(10_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.02, rel=0.04)
    assert deviation == pytest.approx(mean, rel=0.06)
    # Exponential gaps: a share 1/e of them is longer than the mean.
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.02)


def test_poisson_follows_the_steps_and_rests_at_rate_zero() -> None:
    times = poisson(Profile.parse("20-0-200", step=50), seed=1)
    assert within(times, 0, 50) == pytest.approx(1_000, abs=4 * math.sqrt(1_000))
    assert within(times, 50, 100) == 0
    assert within(times, 100, 150) == pytest.approx(10_000, abs=4 * math.sqrt(10_000))
    assert times == sorted(times)
    assert within(times, 0, 150) == len(times)


def test_the_seed_decides() -> None:
    assert poisson(STEADY, seed=7) == poisson(STEADY, seed=7)
    assert poisson(STEADY, seed=7) != poisson(STEADY, seed=8)


def test_one_seed_gives_comparable_runs_at_different_rates() -> None:
    twice = Profile((RateStep(100.0, 200.0),))
    slow, fast = poisson(STEADY, seed=3), poisson(twice, seed=3)
    assert fast[:1000] == pytest.approx([time / 2 for time in slow[:1000]])


def test_send_times_choose_the_process() -> None:
    assert send_times(STEADY, Process.POISSON, seed=4) == poisson(STEADY, seed=4)
    times = send_times(STEADY, Process.PACED, seed=4)
    assert times == send_times(STEADY, Process.PACED, seed=4)
    assert times[0] != send_times(STEADY, Process.PACED, seed=5)[0]
    assert times[1] - times[0] == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(3))
def test_mmpp_has_the_mean_rate_and_two_levels(seed: int) -> None:
    """Counts of a second are at one of two levels; four fifths of the time it is the lower one."""
    seconds = 50_000
    profile = Profile((RateStep(20.0, 0.4 * seconds), RateStep(20.0, 0.6 * seconds)))
    times = list(mmpp_stream(profile, seed=seed))
    # Level changes are 2,000 each: what is left of the spread of a mean stay is 1/√2000 of it.
    assert len(times) == pytest.approx(20 * seconds, rel=0.05)
    counts = Counter(int(time) for time in times)
    low, high = 0.625 * 20, 2.5 * 20
    share = sum(counts[s] < (low + high) / 2 for s in range(seconds)) / seconds
    assert share == pytest.approx(0.8, abs=0.02)
    # Of seconds within one level the counts are Poisson: their variance is their mean.
    steady = [counts[s] for s in range(1, seconds) if max(counts[s - 1], counts[s]) < 25]
    assert statistics.fmean(steady) == pytest.approx(low, rel=0.05)
    assert statistics.variance(steady) == pytest.approx(low, rel=0.15)


def test_mmpp_follows_a_profile_and_its_seed() -> None:
    profile = Profile.parse("20-0-200", step=50)
    times = send_times(profile, Process.MMPP, seed=1)
    assert times == sorted(times) == list(mmpp_stream(profile, seed=1))
    assert times != list(mmpp_stream(profile, seed=2))
    assert within(times, 50, 100) == 0 < within(times, 100, 150)


def test_counts_are_spread_evenly_or_by_seed() -> None:
    assert from_counts([2, 0, 4]) == [0.0, 0.5, 2.0, 2.25, 2.5, 2.75]
    random_times = from_counts([2, 0, 4], seed=1)
    assert [within(random_times, s, s + 1) for s in range(3)] == [2, 0, 4]
    assert random_times == sorted(random_times) == from_counts([2, 0, 4], seed=1)
    assert random_times != from_counts([2, 0, 4])


def test_timestamps_become_seconds_after_the_earliest() -> None:
    assert from_timestamps([1002.5, 1000.0, 1000.25]) == [0.0, 0.25, 2.5]
    assert from_timestamps([]) == []

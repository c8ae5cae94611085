"""Synthetic loads have the shapes that their docstring says the recorded ones have."""

import math
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import pytest

from roma.workload.arrivals import poisson_rates
from roma.workload.errors import WorkloadError
from roma.workload.synthetic import bursty, diurnal, noisy

Generator = Callable[..., Iterator[float]]
ALL = [diurnal, bursty, noisy]
SEEDS = range(5)
HOUR = 3600


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    """The coefficient of variation."""
    m = mean(values)
    return math.sqrt(mean([(v - m) ** 2 for v in values])) / m


def correlation(values: list[float], lag: int) -> float:
    m = mean(values)
    pairs = zip(values, values[lag:], strict=False)
    return sum((a - m) * (b - m) for a, b in pairs) / sum((v - m) ** 2 for v in values)


def step(values: list[float]) -> float:
    return mean([abs(b - a) for a, b in pairwise(values)]) / mean(values)


def spells(values: list[float], *, idle: bool) -> list[int]:
    lengths, current = [], 0
    for value in [*values, None]:
        if value is not None and (value == 0) is idle:
            current += 1
        elif current:
            lengths.append(current)
            current = 0
    return lengths


@pytest.mark.parametrize("make", ALL)
def test_the_same_seed_gives_the_same_load_and_another_one_another(make: Generator) -> None:
    assert list(make(20.0, 300, seed=7)) == list(make(20.0, 300, seed=7))
    assert list(make(20.0, 300, seed=7)) != list(make(20.0, 300, seed=8))


def test_shapes_of_one_seed_are_independent() -> None:
    a, b = list(noisy(1.0, HOUR, seed=1)), list(diurnal(1.0, HOUR, seed=1, swing=1.0, noise=0.3))
    a_mean, b_mean = mean(a), mean(b)
    product = mean([(x - a_mean) * (y - b_mean) for x, y in zip(a, b, strict=True)])
    assert abs(product) / (deviation(a) * deviation(b)) < 0.2


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("seconds", [30, 300, HOUR])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_mean_rate_is_met_exactly_by_as_many_seconds_as_asked(
    make: Generator, seconds: int, seed: int
) -> None:
    rates = list(make(20.0, seconds, seed=seed))
    assert len(rates) == seconds
    assert mean(rates) == pytest.approx(20.0)
    assert min(rates) >= 0


@pytest.mark.parametrize("make", ALL)
def test_send_times_follow_the_rates(make: Generator) -> None:
    rates = list(make(20.0, 600, seed=3))
    times = list(poisson_rates(rates, seed=3))
    assert times == sorted(times)
    assert all(0 <= t < 600 for t in times)
    assert len(times) == pytest.approx(12_000, abs=4 * math.sqrt(12_000))
    # Not only in total: the busier half of the seconds has its share.
    busy = {i for i, r in enumerate(rates) if r > 20.0}
    expected = sum(rates[i] for i in busy)
    assert sum(int(t) in busy for t in times) == pytest.approx(expected, abs=4 * expected**0.5)


def test_a_load_is_streamed() -> None:
    """The first second of a year is there at once: neither rates nor times are kept."""
    year = (20.0 for _ in iter(int, 1))  # without end
    assert len(list(islice(poisson_rates(year, seed=1), 1000))) == 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_diurnal_goes_from_night_to_night_like_the_recorded_day(seed: int) -> None:
    rates = list(diurnal(262.6, HOUR, seed=seed))
    third = HOUR // 3
    assert mean(rates[third : 2 * third]) > 1.25 * mean(rates[:third])
    assert max(rates) / 262.6 == pytest.approx(1.47, abs=0.1)
    assert min(rates) / 262.6 == pytest.approx(0.67, abs=0.1)
    assert deviation(rates) == pytest.approx(0.24, abs=0.06)
    assert correlation(rates, 60) > 0.95
    assert step(rates) < 0.01


def test_diurnal_repeats_its_day() -> None:
    rates = list(diurnal(10.0, 1200, seed=1, periods=2, noise=0.0))
    assert rates[:600] == pytest.approx(rates[600:])
    assert max(rates) / min(rates) == pytest.approx(2.2, rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_bursty_has_long_bursts_far_above_its_base(seed: int) -> None:
    rates = list(bursty(163.3, HOUR, seed=seed, length=300.0, ramp=60.0))
    assert 1.7 < max(rates) / 163.3 < 3.2
    assert 0.3 < deviation(rates) < 0.7
    assert correlation(rates, 60) > 0.5
    assert min(rates) > 0
    high = sum(r > 1.5 * 163.3 for r in rates) / HOUR
    assert 0.03 < high < 0.5


def test_bursts_are_heavy_tailed() -> None:
    """The longest of many is far beyond the mean; an exponential's would be about 7 times it."""
    rates = list(bursty(1.0, 200_000, seed=2, length=20.0, ramp=1.0, noise=0.0))
    base = min(rates)
    lengths = spells([0.0 if r > 2 * base else 1.0 for r in rates], idle=True)
    assert mean([float(n) for n in lengths]) == pytest.approx(20.0, rel=0.5)
    assert max(lengths) > 15 * 20


@pytest.mark.parametrize("seed", range(30))
def test_a_short_bursty_run_has_a_burst(seed: int) -> None:
    rates = list(bursty(20.0, 300, seed=seed, length=30.0))
    assert max(rates) > 1.8 * min(rates)


@pytest.mark.parametrize("seed", SEEDS)
def test_noisy_is_lognormal_and_correlated_over_its_memory(seed: int) -> None:
    rates = list(noisy(50.0, 4 * HOUR, seed=seed, noise=0.3, memory=5.0))
    assert deviation(rates) == pytest.approx(0.3, rel=0.1)
    assert correlation(rates, 5) == pytest.approx(math.exp(-1), abs=0.1)
    assert abs(correlation(rates, 60)) < 0.1
    logs = sorted(math.log(r) for r in rates)
    # Of a normal distribution: symmetric around its median, 68 % within one σ.
    low, middle, high = (logs[round(q * len(logs))] for q in (0.159, 0.5, 0.841))
    assert high - middle == pytest.approx(middle - low, rel=0.1)
    assert high - middle == pytest.approx(math.sqrt(math.log1p(0.09)), rel=0.1)


def test_without_noise_a_noisy_load_is_constant() -> None:
    assert list(noisy(5.0, 10, seed=1, noise=0.0)) == pytest.approx([5.0] * 10)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (diurnal, {"rate": -1.0}, "rate = -1: must be finite and >= 0"),
        (noisy, {"rate": math.nan}, "rate = nan: must be finite and >= 0"),
        (noisy, {"seconds": 0}, "seconds = 0: must be finite and >= 1"),
        (noisy, {"noise": -0.1}, "noise = -0.1: must be finite and >= 0"),
        (diurnal, {"swing": 0.5}, "swing = 0.5: must be finite and >= 1"),
        (bursty, {"share": 1.0}, r"share = 1: must be in \(0, 1\)"),
        (bursty, {"tail": 1.0}, "tail = 1: must be > 1"),
        (bursty, {"ramp": 0.0}, "ramp = 0: must be finite and >= 1"),
        (noisy, {"memory": math.inf}, "memory = inf: must be finite and >= 0"),
    ],
)
def test_an_impossible_shape_is_refused_by_name(
    make: Generator, options: dict[str, float], message: str
) -> None:
    """At the call, before the first second is drawn."""
    with pytest.raises(WorkloadError, match=message):
        make(**{"rate": 5.0, "seconds": 60, "seed": 1, **options})


def test_no_load_at_all_is_a_load() -> None:
    assert list(noisy(0.0, 5, seed=1)) == [0.0] * 5

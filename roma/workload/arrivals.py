"""Intended send times, decided before the first request leaves: pure, seeded, without a clock.

A send time is a float, in seconds after the start of the run. Every function here returns its times
in ascending order, and equal arguments give equal times. No function depends on when a request was
answered: the load is open-loop.
"""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, count
from typing import Self

from roma.workload.errors import WorkloadError

MOST_REQUESTS = 10_000_000
"""Most requests of a run: send times are decided before the first request leaves and kept in
memory."""


class Process(StrEnum):
    """Arrival process that spreads requests over a profile's rate."""

    POISSON = "poisson"
    PACED = "paced"
    MMPP = "mmpp"
    """A Poisson process whose rate switches between two levels; see `LEVELS`."""


LEVELS = ((0.625, 20.0), (2.5, 5.0))
"""Levels of the Markov-modulated Poisson process: factor on the rate, and mean stay in seconds
(exponential). The long-run mean is the profile's rate."""


@dataclass(frozen=True, slots=True)
class RateStep:
    """A constant rate, in requests per second, held for a duration in seconds."""

    rate: float
    duration: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise WorkloadError(f"rate {self.rate:g} req/s: must be a finite number >= 0")
        if not (math.isfinite(self.duration) and self.duration > 0):
            raise WorkloadError(f"step length {self.duration:g} s: must be a finite number > 0")


@dataclass(frozen=True, slots=True)
class Profile:
    """A load that changes in steps, like the column *Workload* of Table 1 in the ROMA paper."""

    steps: tuple[RateStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise WorkloadError("profile with 0 steps: must have at least 1")

    @classmethod
    def parse(cls, text: str, *, step: float) -> Self:
        """Return the profile written as rates joined by dashes, each held for `step` seconds.

        `20-20-80.5` is 20, 20 and then 80.5 requests per second. A dash always separates, so
        neither negative rates nor exponents (`1e-3`) can be written.

        Raises WorkloadError, naming the rate that is not a number or is out of bounds.
        """
        steps = []
        for position, part in enumerate(text.split("-"), start=1):
            try:
                rate = float(part)
            except ValueError:
                raise WorkloadError(
                    f"profile {text!r}, step {position}: {part!r} is not a rate; "
                    "expected numbers >= 0 joined by '-', like 20-20-80"
                ) from None
            steps.append(RateStep(rate, step))
        return cls(tuple(steps))

    @property
    def duration(self) -> float:
        """Seconds from the start of the first step to the end of the last."""
        return sum(step.duration for step in self.steps)

    @property
    def requests(self) -> float:
        """The number of requests that the profile asks for: the integral of its rate."""
        return sum(step.rate * step.duration for step in self.steps)


def _warp(steps: Iterable[RateStep], positions: Iterable[float]) -> Iterator[float]:
    """Map ascending positions of a process of rate 1 onto steps, until they end.

    A position u becomes the time t at which the integral of the rate reaches u. This turns a
    Poisson process of rate 1 into an exact Poisson process of the changing rate, without special
    cases where the rate changes or is 0.
    """
    upcoming = iter(positions)
    position = next(upcoming, math.inf)
    start = base = 0.0
    for step in steps:
        end = base + step.rate * step.duration
        while position < end:
            yield start + (position - base) / step.rate
            position = next(upcoming, math.inf)
        start, base = start + step.duration, end


def _poisson(steps: Iterable[RateStep], seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    return _warp(steps, accumulate(draw.expovariate(1.0) for _ in count()))


def _bound(requests: float) -> None:
    if requests > MOST_REQUESTS:
        raise WorkloadError(f"{requests:.12g} requests: must be at most {MOST_REQUESTS}")


def poisson(profile: Profile, *, seed: int) -> list[float]:
    """Return the send times of a Poisson process with the profile's rate.

    Two profiles with one seed share their randomness, so that runs at different rates are
    comparable.
    """
    _bound(profile.requests)
    return list(poisson_stream(profile, seed=seed))


def poisson_stream(profile: Profile, *, seed: int) -> Iterator[float]:
    """Yield the send times of `poisson` one at a time: memory does not grow with length."""
    return _poisson(profile.steps, seed)


def poisson_rates(rates: Iterable[float], *, seed: int) -> Iterator[float]:
    """Yield the send times of a Poisson process with one rate, in req/s, per successive second.

    Rates are read lazily; neither rates nor times are stored.
    """
    return _poisson((RateStep(rate, 1.0) for rate in rates), seed)


def paced_stream(profile: Profile, *, phase: float = 0.0) -> Iterator[float]:
    """Yield evenly spaced send times.

    `phase` in [0, 1) delays the first request by a share of the gap, so that several paced streams
    need not send at the same moments.
    """
    return _warp(profile.steps, (phase + position for position in count()))


def mmpp_stream(profile: Profile, *, seed: int) -> Iterator[float]:
    """Yield the send times of a Markov-modulated Poisson process with the profile's mean rate."""
    return _poisson(_switched(profile.steps, random.Random(f"levels {seed}")), seed)


def _switched(steps: Iterable[RateStep], draw: random.Random) -> Iterator[RateStep]:
    """Split steps where the level changes; the first level has its long-run probability."""
    (_, low), (_, high) = LEVELS
    level = 0 if draw.random() < low / (low + high) else 1
    stay = draw.expovariate(1 / LEVELS[level][1])
    for step in steps:
        left = step.duration
        while stay < left:
            yield RateStep(step.rate * LEVELS[level][0], stay)
            left -= stay
            level = 1 - level
            stay = draw.expovariate(1 / LEVELS[level][1])
        yield RateStep(step.rate * LEVELS[level][0], left)
        stay -= left


def stream(profile: Profile, process: Process, *, seed: int) -> Iterator[float]:
    """Yield the send times of `process` over `profile`; `seed` also sets a paced stream's phase.

    Streams with different seeds are independent for every process.
    """
    match process:
        case Process.POISSON:
            return poisson_stream(profile, seed=seed)
        case Process.PACED:
            return paced_stream(profile, phase=random.Random(seed).random())
        case Process.MMPP:
            return mmpp_stream(profile, seed=seed)


def send_times(profile: Profile, process: Process, *, seed: int) -> list[float]:
    """Return the send times of `stream`."""
    _bound(profile.requests)
    return list(stream(profile, process, seed=seed))


def from_counts(counts: Iterable[int], *, seed: int | None = None) -> list[float]:
    """Return send times for a number of requests in each successive second.

    The counts are met exactly. Within a second the requests are evenly spaced, or with a seed
    uniformly random: a Poisson process conditioned on its counts.
    """
    draw = None if seed is None else random.Random(seed)
    times: list[float] = []
    for second, number in enumerate(counts):
        _bound(len(times) + number)
        if draw is None:
            times.extend(second + k / number for k in range(number))
        else:
            times.extend(sorted(second + draw.random() for _ in range(number)))
    return times


def from_timestamps(timestamps: Iterable[float]) -> list[float]:
    """Return recorded times, in seconds on any clock, as send times; the earliest becomes 0.

    The times are sorted first, because logs are often ordered by the end of a request.
    """
    ordered = sorted(timestamps)
    return [value - ordered[0] for value in ordered]

"""Statistics of a run: counts and a histogram, in constant memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from roma.lab.experiments.intervals import interval
from roma.lab.sim.fleet_plan import Ended

LOWEST: Final = 1e-4
"""Seconds; shorter times are in the first bin, unless another `lowest` is given."""

GROWTH: Final = 1.01
"""Ratio between the bounds of two bins: a quantile is at most one percent too large."""

BINS: Final = 1500
"""Up to three million times the lowest: five minutes."""

KEPT: Final = 1000
"""Late answers whose times are kept."""

_SCALE: Final = 1 / math.log(GROWTH)


@dataclass(slots=True)
class Latencies:
    """A histogram of seconds with bins of a constant ratio from `lowest` on; `largest` is exact."""

    lowest: float = LOWEST
    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    count: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, seconds: float) -> None:
        """Record a sample."""
        place = math.ceil(math.log(seconds / self.lowest) * _SCALE) if seconds > self.lowest else 0
        self.bins[min(place, BINS - 1)] += 1
        self.count += 1
        self.total += seconds
        self.largest = max(self.largest, seconds)

    def merge(self, other: "Latencies") -> None:
        """Add another histogram's samples."""
        self.bins = [a + b for a, b in zip(self.bins, other.bins, strict=True)]
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float | None:
        """The mean; None without samples."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Return the nearest-rank quantile, at most a percent too large; None without samples."""
        if not self.count:
            return None
        rank = max(1, math.ceil(q * self.count))
        bound = next(bound for bound, reached in self.curve() if reached >= rank)
        return min(bound, self.largest)

    def curve(self) -> Iterable[tuple[float, int]]:
        """Yield each occupied bin's upper bound and how many samples are not above it."""
        reached = 0
        for i, count in enumerate(self.bins):
            if count:
                reached += count
                yield self.lowest * GROWTH**i, reached


class Counts:
    """Requests that ended from `begin` until `end`, of one group of clients, in one or more runs.

    `late` are answers after their SLO, `refused` everything without an answer, `cold` those whose
    model was not loaded when they came, `cold_answered` those of them that were answered in time.
    """

    __slots__ = (
        "begin",
        "cold",
        "cold_answered",
        "end",
        "good",
        "late",
        "late_at",
        "latencies",
        "refused",
        "runs",
        "seconds",
    )

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self.seconds = end - begin
        """Of all runs together."""
        self.good = self.late = self.refused = 0
        self.cold = self.cold_answered = 0
        self.latencies = Latencies()
        self.late_at: list[float] = []
        """Times at which late answers came; at most `KEPT` of them."""
        self.runs: tuple[Counts, ...] = ()
        """The runs that are counted here together; empty for one run."""

    @classmethod
    def of_runs(cls, runs: Sequence["Counts"]) -> "Counts":
        """Return the sum of several runs."""
        total = cls.of_stretches(runs)
        total.runs = tuple(runs)
        return total

    @classmethod
    def of_stretches(cls, stretches: Sequence["Counts"]) -> "Counts":
        """Return the sum of successive stretches of one run."""
        total = cls(stretches[0].begin, stretches[-1].end)
        total.seconds = 0.0
        for counts in stretches:
            total._add_counts(counts)
        return total

    def add(self, ended: Ended) -> None:
        """Count a request."""
        if not self.begin <= ended.ended < self.end:
            return
        self.cold += ended.is_cold
        if ended.reason is not None:
            self.refused += 1
            return
        self.latencies.add(ended.response)
        if ended.is_good:
            self.good += 1
            self.cold_answered += ended.is_cold
            return
        self.late += 1
        if len(self.late_at) < KEPT:
            self.late_at.append(ended.ended)

    def _add_counts(self, other: "Counts") -> None:
        self.seconds += other.seconds
        self.good += other.good
        self.late += other.late
        self.refused += other.refused
        self.cold += other.cold
        self.cold_answered += other.cold_answered
        self.latencies.merge(other.latencies)
        self.late_at = (self.late_at + other.late_at)[:KEPT]

    @property
    def total(self) -> int:
        """Every request."""
        return self.good + self.late + self.refused

    @property
    def goodput(self) -> float:
        """Answers within their SLO per second."""
        return self.good / self.seconds

    @property
    def satisfaction(self) -> float:
        """The share of requests that were answered within their SLO (§6.3); 1 without any."""
        return self.good / self.total if self.total else 1.0

    @property
    def refused_share(self) -> float:
        """The share of requests that got no answer."""
        return self.refused / max(1, self.total)

    @property
    def cold_share(self) -> float:
        """The share of answers in time whose model was not loaded when the request came."""
        return self.cold_answered / max(1, self.good)

    def half(
        self, figure: Literal["goodput", "satisfaction", "refused_share", "cold_share"]
    ) -> float | None:
        """Return half of a figure's 95 % interval over the runs; None for one run."""
        return interval([getattr(run, figure) for run in self.runs])[1] if self.runs else None

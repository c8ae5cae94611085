"""Running statistics: constant work per sample, bounded memory, no clock.

A sum of floats drifts when terms are added and removed for days. Every running sum here restarts
from exact zero when it is empty, which bounds the drift to one busy period.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

MAX_WINDOW_SAMPLES: Final = 8192
"""Bound on a window's memory; at higher rates the window keeps its newest samples."""


class SlidingWindow:
    """Samples of the last `span` seconds, with an O(1) mean; reading drops older samples."""

    __slots__ = ("_samples", "_span", "_total")

    def __init__(self, span: float) -> None:
        self._span = span
        self._samples: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, value: float, now: float) -> None:
        """Record `value` at time `now`, which never decreases."""
        samples = self._samples
        samples.append((now, value))
        self._total += value
        if len(samples) > MAX_WINDOW_SAMPLES:
            self._total -= samples.popleft()[1]
        if samples[0][0] <= now - self._span:
            self._expire(now)

    def mean(self, now: float) -> float | None:
        """Return the mean of the samples of the last `span` seconds, None if there are none."""
        self._expire(now)
        return self._total / len(self._samples) if self._samples else None

    def quantile(self, q: float, now: float) -> float | None:
        """Return the smallest sample with at least a share `q` at or below it (O(n log n))."""
        self._expire(now)
        return quantile((value for _, value in self._samples), q)

    def _expire(self, now: float) -> None:
        """Drop samples older than the span; amortised O(1)."""
        samples, horizon = self._samples, now - self._span
        while samples and samples[0][0] <= horizon:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0


class RollingQuantile:
    """A quantile of the last `size` samples: robust against one stall, quick to forget.

    `value` is the quantile, None before the first sample.
    """

    __slots__ = ("_index", "_oldest", "_order", "_q", "_recent", "_size", "value")

    def __init__(self, size: int, q: float) -> None:
        self._size = size
        self._q = q
        self._index = _index(size, q)
        self._recent: list[float] = []
        self._oldest = 0
        self._order: list[float] = []
        # Computed on `add`: each request adds one sample but reads the value several times.
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Record a sample, dropping the oldest when full."""
        if len(self._recent) < self._size:
            self._recent.append(value)
            insort(self._order, value)
            self.value = _rank(self._order, self._q)
            return
        oldest = self._oldest
        _replace(self._order, self._recent[oldest], value)
        self._recent[oldest] = value
        self._oldest = oldest + 1 if oldest + 1 < self._size else 0
        self.value = self._order[self._index]

    def __len__(self) -> int:
        return len(self._recent)

    def at(self, q: float) -> float | None:
        """Return another quantile of the same samples, None before the first."""
        return _rank(self._order, q) if self._order else None


class Histogram:
    """Counts of samples by fixed, ascending upper bounds; bounds are inclusive.

    `counts` has one entry for each bound and one for samples above all bounds; `total` is the sum
    of the samples.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Record a sample; O(log bounds)."""
        self.counts[0 if value <= self.bounds[0] else bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_twice(self, other: "Histogram", value: float) -> None:
        """Record a sample here and in another histogram with the same bounds."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value
        other.counts[place] += 1
        other.total += value


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times each power of ten that lie between `low` and `high`, both positive.

    Parsed from decimal text, so that each is exactly the float that people and Prometheus write.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    grid = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [bound for bound in grid if low <= bound <= high]


@lru_cache
def bounds_around(promise: float) -> tuple[float, ...]:
    """Return histogram bounds for times that should be below `promise`, which is one of them.

    Three decades below it, since an execution may take milliseconds under a promise of seconds; one
    decade above it, since longer times need no distinction. Models with the same promise share one
    tuple: thousands of copies would evict one another from the processor's caches.
    """
    return tuple(sorted({*decades(promise / 1000, promise * 10), promise}))


def quantile(values: Iterable[float], q: float) -> float | None:
    """Return the nearest-rank quantile of `values`, or None if there are none."""
    ordered = sorted(values)
    return _rank(ordered, q) if ordered else None


def _rank(ordered: list[float], q: float) -> float:
    return ordered[_index(len(ordered), q)]


def _index(size: int, q: float) -> int:
    return max(0, math.ceil(q * size) - 1)


def _replace(ordered: list[float], old: float, new: float) -> None:
    """Remove `old` and insert `new`, keeping the order; the list is short."""
    del ordered[ordered.index(old)]
    place = 0
    for other in ordered:
        if other >= new:
            break
        place += 1
    ordered.insert(place, new)


def ewma(previous: float | None, value: float, weight: float) -> float:
    """Return the exponentially weighted moving average; the first sample is returned as it is."""
    return value if previous is None else previous + weight * (value - previous)

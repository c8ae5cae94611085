"""Outcomes of one model's requests: constant memory, whatever the length of the run."""

import math
from collections import Counter
from dataclasses import dataclass, field

from roma.domain.events import Reason

RESOLUTION = 50
"""Histogram buckets per factor e: percentiles are right within 2 %."""

BROKEN = 2.0
"""Time of a broken promise, in SLAs; the same for every system that is compared."""

NO_TIME = -(10**6)
"""The bucket of response times of 0 s."""


@dataclass(slots=True)
class RunningMoments:
    """Count, mean, standard deviation and maximum of a stream of numbers (Welford)."""

    count: int = 0
    mean: float = 0.0
    worst: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Take one number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)
        self.worst = value if value > self.worst else self.worst

    @property
    def deviation(self) -> float:
        """Standard deviation; 0 of fewer than two numbers."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(slots=True)
class Tally:
    """Accounting of one model. Times in seconds.

    `windows` are the means of each second in which a request ended: the paper's response time. A
    refused or failed request enters its second as `BROKEN` SLAs, or its age if that is more:
    refusing must not look fast, whatever deadline a system works with.
    """

    sla: float
    arrivals: int = 0
    late: int = 0
    failed: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter)
    response: RunningMoments = field(default_factory=RunningMoments)
    windows: RunningMoments = field(default_factory=RunningMoments)
    windows_over: int = 0
    series: list[tuple[int, float]] | None = None
    _histogram: Counter[int] = field(default_factory=Counter)
    _second: int = 0
    _sum: float = 0.0
    _count: int = 0

    def answered(self, response: float, now: float) -> None:
        """Count an answer that took `response` seconds."""
        self.response.add(response)
        if response > self.sla:
            self.late += 1
        bucket = math.floor(math.log(response) * RESOLUTION) if response > 0 else NO_TIME
        self._histogram[bucket] += 1
        self._ended(response, now)

    def refused(self, reason: Reason, arrived: float, now: float) -> None:
        """Count a rejection."""
        self.rejected[reason] += 1
        self._ended(max(now - arrived, BROKEN * self.sla), now)

    def failure(self, arrived: float, now: float) -> None:
        """Count a failed execution."""
        self.failed += 1
        self._ended(max(now - arrived, BROKEN * self.sla), now)

    def close(self) -> None:
        """End the last window."""
        if self._count:
            mean = self._sum / self._count
            self.windows.add(mean)
            self.windows_over += mean > self.sla
            if self.series is not None:
                self.series.append((self._second, mean))
        self._sum, self._count = 0.0, 0

    def quantile(self, q: float) -> float | None:
        """Return a quantile of the response times within the histogram's resolution."""
        rank, seen = math.ceil(q * self.response.count), 0
        for bucket in sorted(self._histogram):
            seen += self._histogram[bucket]
            if seen >= rank:
                return min(math.exp((bucket + 0.5) / RESOLUTION), self.response.worst)
        return None

    def _ended(self, response: float, now: float) -> None:
        second = int(now)
        if second != self._second:
            self.close()
            self._second = second
        self._sum += response
        self._count += 1

"""A CPU executable under a CFS quota, as the kernel grants it (kernel/sched/fair.c).

Every period brings `quota = cores x period` core-seconds. Runnable requests spend them at full
speed, sharing fairly; once they are spent, everything stalls until the next period. What a period
leaves may be inherited, up to `burst` quotas: a token bucket. Setting a quota fills it at once: the
kernel adds a quota at each write, and quota and burst are written one after the other. Each core
notices a spent quota at its own next tick, and the next period pays for what it ran until then: the
bucket is larger by `notice` seconds of the cores that run.

Between two events nothing changes but time, so the state advances a period at a time and the next
completion is computed, never stepped to. Most events fall into the period of the one before, with
budget left: that path is written out, without further calls. Left out: the 5 ms slices in which a
quota is handed to CPUs. Executables that want more cores than their machine has are slowed down by
`roma/lab/sim/machine.py`.
"""

from heapq import heappop, heappush

EPSILON = 1e-12
"""Core-seconds that are rounding, not work."""

MOMENT = 1e-9
"""Seconds below which a difference is rounding, on a clock that has run for weeks."""


class QuotaCpu:
    """The requests running in one executable; times in seconds, work in core-seconds.

    `burst` in quotas, `notice` in seconds; `parallelism` is the number of cores that one
    request keeps busy, `limit` the machine's number. `usage`, `periods` and `throttled` are
    cumulative, like the kernel's.
    """

    __slots__ = (
        "_boundary",
        "_budget",
        "_limit",
        "_notice",
        "_overrun",
        "_pace",
        "_parallelism",
        "_period",
        "_quota",
        "_rate",
        "_running",
        "_served",
        "_stalled",
        "_time",
        "burst",
        "cores",
        "periods",
        "throttled",
        "usage",
    )

    def __init__(
        self,
        cores: float,
        *,
        period: float,
        burst: float = 0.0,
        notice: float = 0.0,
        parallelism: float = 1.0,
        limit: float = float("inf"),
    ) -> None:
        self.usage = 0.0
        self.periods = 0
        self.throttled = 0
        self.cores = cores
        self._period = period
        self.burst = burst
        self._notice = notice
        self._overrun = 0.0  # what the cores that run may use beyond the quota
        self._parallelism = parallelism
        self._limit = limit
        self._quota = cores * period
        self._budget = self._quota
        self._boundary = period
        self._time = 0.0
        # Fair sharing: every running request has been served equally since it began, so one
        # number counts for all, and a request ends when that number reaches its mark.
        self._served = 0.0
        self._running: list[tuple[float, int]] = []
        self._rate = 0.0  # their joint rate, in cores
        self._pace = float("inf")
        self._stalled = False

    @property
    def wanted(self) -> float:
        """The cores that running requests would use without quota or neighbours."""
        return min(len(self._running) * self._parallelism, self._limit)

    @property
    def is_spent(self) -> bool:
        """True if nothing is left of the quota until the next period."""
        return self._budget <= MOMENT * self._rate

    def next_turn(self) -> float:
        """Return the time when the quota is spent at this pace, or when the next period begins."""
        if self.is_spent:
            return self._boundary
        return min(self._boundary, self._time + self._budget / self._rate)

    def pace(self, cores: float, now: float) -> None:
        """Run at no more than `cores` from now on: others use the rest of the machine."""
        self.advance(now)
        self._pace = cores
        self._set_rate()

    def start(self, execution: int, work: float, now: float) -> None:
        """Begin an execution that needs `work` core-seconds."""
        self.advance(now)
        heappush(self._running, (self._served + work, execution))
        self._set_rate()

    def next_end(self) -> tuple[float, int] | None:
        """Return the next end if nothing changes, and its execution."""
        if not self._running:
            return None
        mark, execution = self._running[0]
        rate, need = self._rate, (mark - self._served) * len(self._running)
        time, boundary, budget = self._time, self._boundary, self._budget
        while True:
            possible = (boundary - time) * rate
            possible = possible if possible < budget else max(0.0, budget)
            if need <= possible + EPSILON:
                return time + need / rate, execution
            need -= possible
            time, budget = boundary, self._refilled(budget - possible)
            boundary += self._period

    def end(self, now: float) -> int:
        """Finish the execution that `next_end` named, at the time it named; return it."""
        self.advance(now)
        mark, execution = heappop(self._running)
        self._served = mark if self._running else 0.0
        self._set_rate()
        return execution

    def resize(self, cores: float, now: float) -> None:
        """Set the quota."""
        self.advance(now)
        self.cores = cores
        self._quota = cores * self._period
        self._budget = self._most()
        self._stalled = False

    def clear(self, now: float) -> None:
        """Drop all running executions."""
        self.advance(now)
        self._running.clear()
        self._served = 0.0
        self._set_rate()

    def advance(self, now: float) -> None:
        """Let time pass until `now`, which never decreases."""
        if not self._running:
            if now >= self._boundary:
                self._idle_until(now)
            self._time = now
            return
        wanted = (now - self._time) * self._rate
        if now < self._boundary and wanted <= self._budget:
            self._budget -= wanted
            self._time = now
            spent = wanted
        else:
            spent = self._run_until(now)
        self.usage += spent
        self._served += spent / len(self._running)

    def _idle_until(self, now: float) -> None:
        """Let boundaries pass with nothing running; the kernel's timer sleeps and counts none."""
        passed = int((now - self._boundary) / self._period) + 1
        self._budget = min(self._most(), self._budget + passed * self._quota)
        self._boundary += passed * self._period
        self._stalled = False

    def _run_until(self, now: float) -> float:
        """Run over any number of period boundaries; return the core-seconds spent."""
        spent = 0.0
        while now >= self._boundary:
            spent += self._spend(self._boundary)
            self._budget = self._refilled(self._budget)
            self._boundary += self._period
            self._stalled = False
            self.periods += 1
        return spent + self._spend(now)

    def _spend(self, until: float) -> float:
        """Run within one period; return the core-seconds spent."""
        wanted = (until - self._time) * self._rate
        spent = min(wanted, max(0.0, self._budget))
        if wanted > spent + EPSILON and not self._stalled:
            self._stalled = True
            self.throttled += 1
        self._budget -= spent
        self._time = until
        return spent

    def _refilled(self, left: float) -> float:
        return min(left + self._quota, self._most())

    def _most(self) -> float:
        return self._quota * (1 + self.burst) + self._overrun

    def _set_rate(self) -> None:
        self._rate = min(len(self._running) * self._parallelism, self._limit, self._pace)
        overrun = self._notice * self._rate
        self._budget += overrun - self._overrun
        self._overrun = overrun

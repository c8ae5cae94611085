"""Rate limit of one caller: a token bucket, and a bound on its requests in progress.

Time is an argument; a clock that stands still or jumps back adds no tokens.
"""

from roma.config.security import Limits


class RateLimit:
    """The counters of one caller. In any t seconds at most rate·t + burst requests are admitted."""

    __slots__ = ("_at", "_burst", "_concurrency", "_level", "_rate", "under_way")

    def __init__(self, limits: Limits) -> None:
        self.under_way = 0
        self._at = float("-inf")
        self._level = 0.0
        self.follow(limits)

    def __repr__(self) -> str:
        return f"<RateLimit {self._level:g} of {self._burst:g}, {self.under_way} under way>"

    def follow(self, limits: Limits) -> None:
        """Take over other bounds; requests in progress and spent tokens still count."""
        self._rate = limits.rate
        self._burst = limits.effective_burst
        self._concurrency = limits.concurrency
        self._level = min(self._level, self._burst)

    def refusal(self, now: float) -> tuple[str, float | None] | None:
        """Count one more request, or return the reason against it and the seconds until a retry."""
        # Concurrency first: a request that it refuses must not cost any of the rate.
        if self._concurrency is not None and self.under_way >= self._concurrency:
            return f"{self.under_way} requests under way (concurrency {self._concurrency})", None
        if self._rate is not None:
            if now > self._at:
                self._level = min(self._burst, self._level + (now - self._at) * self._rate)
                self._at = now
            if self._level < 1:
                wait = (1 - self._level) / self._rate
                return f"more than {self._rate:g} requests per second", wait
            self._level -= 1
        self.under_way += 1
        return None

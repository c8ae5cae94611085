"""The present rate of requests: the mean over the longest recent time in which it looks constant.

Counts at a constant rate are Poisson. If the last period, second or seconds contradict the mean, by
the likelihood of two rates against one, the mean restarts from them. If not, they are noise and are
averaged in. So a step is followed at once, and noise is not.
"""

from dataclasses import dataclass
from math import exp, log

SPANS = (1.0, 3.0)
"""Time constants, in seconds, of the averages that are compared with the mean."""

MEMORY = 20.0
"""Longest time, in seconds, over which the mean is taken."""

NO_RATE = 1e-6
"""Requests/s that count as none. Averages of silence would end in subnormal numbers."""

DOUBT = 5.0
"""Nats by which two rates must be likelier than one."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """`mean` in requests/s over the last `age` seconds; `recent` are averages of `SPANS`."""

    mean: float = 0.0
    age: float = 0.0
    recent: tuple[float, ...] = ()

    def update(self, count: float, dt: float) -> "RequestRate":
        """Return the rate after a period of `dt` seconds with `count` requests."""
        now = count / dt
        if not self.recent:
            return RequestRate(now, dt, (now,) * len(SPANS))
        recent = [
            r + (now - r) * (1 - exp(-dt / span))
            for r, span in zip(self.recent, SPANS, strict=True)
        ]
        seen = [(now, dt), *((r, 2 * span) for r, span in zip(recent, SPANS, strict=True))]
        most, since = DOUBT, None
        for rate, over in seen:
            doubt = _contradiction(self.mean, self.age, rate, over) if over < self.age else 0.0
            if doubt > most:
                most, since = doubt, (rate, over)
        if since is not None:
            rate, over = since
            # Longer averages still contain the old rate.
            kept = (rate if 2 * s > over else r for r, s in zip(recent, SPANS, strict=True))
            return RequestRate(rate, over, tuple(kept))
        age = min(MEMORY, self.age + dt)
        mean = self.mean + (now - self.mean) * dt / age
        return RequestRate(mean if mean > NO_RATE else 0.0, age, tuple(recent))


NOTHING = RequestRate()
"""The state before the first period."""


def _contradiction(a: float, over_a: float, b: float, over_b: float) -> float:
    """Return the log of how much likelier two rates are than one, in nats."""
    both = (a * over_a + b * over_b) / (over_a + over_b)
    return _nats(a, over_a, both) + _nats(b, over_b, both) if both > NO_RATE else 0.0


def _nats(rate: float, over: float, mean: float) -> float:
    return rate * over * log(rate / mean) if rate > NO_RATE else 0.0

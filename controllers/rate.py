"""The present rate of requests: the mean over the longest recent time in which it looks constant.

Counts at a constant rate are Poisson. If the last period, second or seconds contradict the mean, by
the likelihood of two rates against one, the mean restarts from them. If not, they are noise and are
averaged in. So a step is followed at once, and noise is not. Where arrivals vary more than
Poisson's (controllers/dispersion.py), evidence counts for less in proportion: quasi-likelihood.
"""

from dataclasses import dataclass
from math import exp, log
from typing import Final

FAST: Final = 1.0
SLOW: Final = 3.0
"""Time constants, in seconds, of the averages that are compared with the mean."""

MEMORY: Final = 20.0
"""Longest time, in seconds, over which the mean is taken."""

NO_RATE: Final = 1e-6
"""Requests/s that count as none. Averages of silence would end in subnormal numbers."""

DOUBT: Final = 5.0
"""Nats by which two rates must be likelier than one."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`: several in every tick
class RequestRate:
    """`mean` in requests/s over the last `age` seconds; `fast` and `slow` are the averages.

    An age of 0 is the state before the first period.
    """

    mean: float
    age: float
    fast: float
    slow: float

    def __init__(
        self, mean: float = 0.0, age: float = 0.0, fast: float = 0.0, slow: float = 0.0
    ) -> None:
        self.mean = mean
        self.age = age
        self.fast = fast
        self.slow = slow

    def update(self, count: float, dt: float, excess: float = 1.0) -> "RequestRate":
        """Return the rate after a period of `dt` seconds with `count` requests.

        Counts vary `excess` times as much as Poisson's.
        """
        now = count / dt
        if not self.age:
            return RequestRate(now, dt, now, now)
        fast = self.fast + (now - self.fast) * (1 - exp(-dt / FAST))
        slow = self.slow + (now - self.slow) * (1 - exp(-dt / SLOW))
        rate, over, most = now, dt, self._doubt(now, dt)
        doubt = self._doubt(fast, 2 * FAST)
        if doubt > most:
            rate, over, most = fast, 2 * FAST, doubt
        doubt = self._doubt(slow, 2 * SLOW)
        if doubt > most:
            rate, over, most = slow, 2 * SLOW, doubt
        if most > DOUBT * excess:
            # Longer averages still contain the old rate.
            fast = rate if over < 2 * FAST else fast
            slow = rate if over < 2 * SLOW else slow
            return RequestRate(rate, over, fast, slow)
        age = min(MEMORY, self.age + dt)
        mean = self.mean + (now - self.mean) * dt / age
        return RequestRate(mean if mean > NO_RATE else 0.0, age, fast, slow)

    def _doubt(self, rate: float, over: float) -> float:
        """Return how much likelier this rate over `over` seconds makes two rates than one."""
        return _contradiction(self.mean, self.age, rate, over) if over < self.age else 0.0


def _contradiction(a: float, over_a: float, b: float, over_b: float) -> float:
    """Return the log of how much likelier two rates are than one, in nats."""
    both = (a * over_a + b * over_b) / (over_a + over_b)
    return _nats(a, over_a, both) + _nats(b, over_b, both) if both > NO_RATE else 0.0


def _nats(rate: float, over: float, mean: float) -> float:
    return rate * over * log(rate / mean) if rate > NO_RATE else 0.0

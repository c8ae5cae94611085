"""ĉ: the core-seconds that one request costs, estimated from usage and completions."""

import math
from dataclasses import dataclass

from controllers.base import clip
from controllers.measurement import Measurement
from roma.domain.stats import ewma

WEIGHT = 0.2
"""Weight of a new period, a memory of about five periods: a batch of large inputs moves the
estimate, a single one does not."""

TRUST = 4.0
"""An estimate outside [1/4, 4] times the profile is a measurement fault, not a change of cost."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`: two in every tick
class Cost:
    """The running estimate, None before the first completion; core-seconds per request.

    `begun` is the usage, since the last period in which a request ended, of those still running.
    `unread` seconds and `unread_completed` requests have passed since the last reading of usage.
    """

    estimate: float | None
    begun: float
    unread: float
    unread_completed: float

    def __init__(
        self,
        estimate: float | None = None,
        begun: float = 0.0,
        unread: float = 0.0,
        unread_completed: float = 0.0,
    ) -> None:
        self.estimate = estimate
        self.begun = begun
        self.unread = unread
        self.unread_completed = unread_completed

    def update(self, m: Measurement, dt: float) -> "Cost":
        """Return the estimate after a period of `dt` seconds.

        A request that outlasts the period also used the periods before the one in which it ends.
        Usage in a period in which nothing ran is charged to no request. The next reading also
        covers the periods without one.
        """
        if not dt > 0:
            return self
        completed = self.unread_completed + m.completed_here
        if m.usage is None:
            return Cost(self.estimate, self.begun, self.unread + dt, completed)
        if not 0 <= m.usage < math.inf:
            return Cost(self.estimate, self.begun)
        used = self.begun + m.usage * ((self.unread + dt) / dt)
        if not completed > 0:
            return Cost(self.estimate, used if m.in_flight_here else 0.0)
        if used == 0:
            return Cost(self.estimate)
        sample = used / completed
        if m.profile is not None:
            sample = clip(sample, m.profile / TRUST, m.profile * TRUST)
        return Cost(ewma(self.estimate, sample, WEIGHT))

    def value(self, profile: float | None) -> float | None:
        """The best known cost: measured, else profiled, else None."""
        return self.estimate if self.estimate is not None else profile

"""ĉ: the core-seconds that one request costs, estimated from usage and completions."""

import math
from dataclasses import dataclass

from controllers.base import clip
from roma.stats import ewma

WEIGHT = 0.2
"""Remembers about five periods: a batch of large inputs moves it, a single one does not."""

TRUST = 4.0
"""An estimate outside [1/4, 4] times the profile is a measurement fault, not a change of cost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The running estimate; None before the first completion."""

    estimate: float | None = None

    def update(self, usage: float, completed: float, profile: float | None) -> "Cost":
        """Return the estimate after a period with `usage` core-s and `completed` requests.

        A period without completions says nothing about the cost of one.
        """
        if not (completed > 0 and 0 < usage < math.inf):
            return self
        sample = usage / completed
        if profile is not None:
            sample = clip(sample, profile / TRUST, profile * TRUST)
        return Cost(ewma(self.estimate, sample, WEIGHT))

    def value(self, profile: float | None) -> float | None:
        """The best known cost: measured, else profiled, else None."""
        return self.estimate if self.estimate is not None else profile


UNKNOWN = Cost()

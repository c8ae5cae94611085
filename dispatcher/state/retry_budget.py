"""How many requests may run a second time: a share of those that came, so that no storm begins.

A request is repeated only if no executable received it. Even that costs connections and time just
when something is broken, so it has a budget (as Envoy's retry budget and Finagle's).
"""

from typing import Final

RETRY_RATIO: Final = 10
"""One of so many may be repeated: 10 %."""

BURST: Final = 10
"""Repetitions that are saved up at most: a model of few requests needs some as well."""


class RetryBudget:
    """The repetitions that one model has left; computed only when one is needed."""

    __slots__ = ("_arrivals", "_credit")

    def __init__(self) -> None:
        self._credit = BURST * RETRY_RATIO
        self._arrivals = 0

    def take(self, arrivals: int) -> bool:
        """Spend one repetition after `arrivals` requests in all; False if none is left."""
        self._credit = min(BURST * RETRY_RATIO, self._credit + arrivals - self._arrivals)
        self._arrivals = arrivals
        if self._credit < RETRY_RATIO:
            return False
        self._credit -= RETRY_RATIO
        return True

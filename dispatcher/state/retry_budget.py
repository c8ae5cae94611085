"""Retry budget: a share of the requests that arrived, so that no retry storm begins.

A request is retried only if no executable received it. Even that costs connections and time just
when something is broken, so it has a budget (like Envoy's retry budget and Finagle's).
"""

from typing import Final

REQUESTS_PER_RETRY: Final = 10
"""Arrivals per retry: one request in ten may be retried (10 %)."""

BURST: Final = 10
"""Retries saved up at most: a model with few requests needs some as well."""


class RetryBudget:
    """The retries that one model has left; computed only when one is needed."""

    __slots__ = ("_arrivals", "_credit")

    def __init__(self) -> None:
        self._credit = BURST * REQUESTS_PER_RETRY
        self._arrivals = 0

    def take(self, arrivals: int) -> bool:
        """Spend one retry after `arrivals` requests in all; False if none is left."""
        self._credit = min(BURST * REQUESTS_PER_RETRY, self._credit + arrivals - self._arrivals)
        self._arrivals = arrivals
        if self._credit < REQUESTS_PER_RETRY:
            return False
        self._credit -= REQUESTS_PER_RETRY
        return True

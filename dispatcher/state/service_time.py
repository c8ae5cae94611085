"""Service times of a model's requests on an executor: measured, never configured.

On a CPU executor the time of one request depends on the cores it gets, and those change every
second. So the stored value is work = duration x (cores per slot), in core-seconds, and a prediction
divides it by the current cores per slot. On a GPU the share is 1 and work is the duration.
"""

from dispatcher.state.request_cost import LargeCosts
from roma.domain.stats import RollingQuantile

SAMPLES = 9
"""Number of samples. The median of nine ignores a stall (one sample) and follows a change within
five requests."""


TAIL_QUANTILE = 8 / SAMPLES
"""Quantile of the tail of service times, by which a request is dropped: eight of nine are
shorter."""


class ServiceProfile:
    """`work`: core-seconds per request of one model on one executor; None if never measured.

    `large` has the costs of its large requests, if there were any.
    """

    __slots__ = ("_quantile", "large", "work")

    def __init__(self) -> None:
        self._quantile = RollingQuantile(SAMPLES, 0.5)
        self.work: float | None = None
        self.large = LargeCosts()

    @property
    def samples(self) -> int:
        """The number of executions that `work` is based on."""
        return len(self._quantile)

    def record(self, work: float) -> None:
        """Record an execution whose slot was granted `work` core-seconds while it ran."""
        self._quantile.add(work)
        self.work = self._quantile.value

    def tail(self) -> float | None:
        """Return the core-seconds within which most requests end; None if never measured."""
        return self._quantile.at(TAIL_QUANTILE)

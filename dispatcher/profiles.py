"""How long a model's requests take on an executor: measured, never configured.

On a CPU executor the time of one request depends on the cores it gets, and those move every
second. So what is kept is work = duration x (cores per slot), in core-seconds, and a prediction
divides it by the cores per slot of now. On a GPU the share is 1 and work is the duration.
"""

from roma.stats import RollingQuantile

SAMPLES = 9
"""The median of nine forgets a stall (one sample) and follows a change within five requests."""


class ServiceProfile:
    """Work per request of one model on one executor."""

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work = RollingQuantile(SAMPLES, 0.5)

    def record(self, duration: float, share: float) -> None:
        """Record an execution of `duration` seconds that could use `share` cores."""
        self._work.add(duration * share)

    def expected(self, share: float) -> float | None:
        """Return the predicted seconds at `share` cores per slot; None before any measurement."""
        work = self._work.value
        return None if work is None else work / share

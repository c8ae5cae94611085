"""The shape every control law has.

`step(state, measurement, dt=…, lo=…, hi=…) -> (demand, state)`: a pure function, no clock. A law
rebuilds its integrator from what was really *applied* (after bounds, supervisor and failed
actuations): the paper's `updateStateAndActuate`, which is the anti-windup and makes every change
of law, gains or mode bumpless, since the start value is the quota read back.
"""

from typing import Any, Protocol

from controllers.measurement import Demand, Measurement


class Law(Protocol):
    """A control law with its gains bound. The state is the law's own; `None` starts it."""

    def __call__(
        self, state: Any, measurement: Measurement, *, dt: float, lo: float, hi: float
    ) -> tuple[Demand, Any]:
        """Return the demand and the next state.

        `dt` is the measured period in seconds, `lo` and `hi` bound the demand in cores.
        """
        ...


def clip(value: float, lo: float, hi: float) -> float:
    """Return `value` bounded to [lo, hi]."""
    return max(lo, min(hi, value))

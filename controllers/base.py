"""The interface of a control law.

`step(state, measurement, dt=…, lo=…, hi=…) -> (demand, state)`: a pure function, no clock. A law
rebuilds its integrator from what was really *applied* (after bounds, supervisor and failed
actuations). This is the paper's `updateStateAndActuate`: it is the anti-windup, and it makes every
change of law, gains or mode bumpless, since the start value is the quota read back.
"""

from typing import Any, Protocol

from controllers.measurement import Demand, Measurement


class Law(Protocol):
    """A control law with its gains bound. The state is opaque to the caller; `None` starts it."""

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

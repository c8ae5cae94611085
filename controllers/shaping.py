"""Behaviour by wrapping: small functions around a law, composed in `registry.build`."""

from typing import Any

from controllers.base import Law
from controllers.measurement import Demand, Measurement, hold

MAX_GAP = 3.0
"""Seconds. After a longer silence the measured window says nothing about a control period."""


def holding(law: Law) -> Law:
    """Hold when the period is unusable: a gap, a clock fault or a number that is not finite."""

    def step(
        state: Any, measurement: Measurement, *, dt: float, lo: float, hi: float
    ) -> tuple[Demand, Any]:
        if not 0 < dt <= MAX_GAP:
            return hold(f"period of {dt:.3f} s is outside (0, {MAX_GAP:g}] s"), state
        if not measurement.finite:
            return hold("a measured number is not finite"), state
        return law(state, measurement, dt=dt, lo=lo, hi=hi)

    return step


def bounded(law: Law) -> Law:
    """Bound the demand to [lo, hi], whatever the law computes."""

    def step(
        state: Any, measurement: Measurement, *, dt: float, lo: float, hi: float
    ) -> tuple[Demand, Any]:
        demand, state = law(state, measurement, dt=dt, lo=lo, hi=hi)
        return demand.clipped(lo, hi), state

    return step

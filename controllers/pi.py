"""`pi`: the paper's controller (eq. 11), u(k) = u(k-1) + K·(e(k) - a·e(k-1)).

u(k-1) is what was really applied, so nothing winds up when bounds, supervisor or a failed
actuation gave something else. With the error positive when slow, K > 0 and 0 ≤ a < 1.
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from controllers.cost import Cost
from controllers.error import ErrorForm, error
from controllers.measurement import Demand, Measurement, hold, resting

IDLE_DECAY = 0.8
"""Per second: an idle model gives its cores back within seconds, not at once."""


@dataclass(frozen=True, slots=True)
class PiGains:
    """K in cores per unit of error (dimensionless for `inverse`), a the zero.

    The defaults are stable with up to three periods of dead time on the plant of docs/control.md
    (tests/unit/controllers/test_closed_loop.py); the paper's own are K = 0.15, a = 0.11.
    """

    error: ErrorForm = ErrorForm.LOG
    K: Annotated[float, Field(gt=0, le=100)] = 0.4
    a: Annotated[float, Field(ge=0, lt=1)] = 0.8


@dataclass(frozen=True, slots=True)
class PiState:
    """e(k-1), and the cost estimate that `inverse` needs."""

    e: float | None = None
    cost: Cost = field(default_factory=Cost)


def pi_step(
    gains: PiGains,
    state: PiState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, PiState]:
    """Return the demand and the next state; see the module docstring."""
    state = state or PiState()
    m = measurement
    cost = state.cost.update(m, dt)
    if m.idle:
        return resting(m.applied, IDLE_DECAY**dt).clipped(lo, hi), PiState(None, cost)
    y, c = m.effective_response_time, cost.value(m.profile)
    if y is None:
        return hold("nothing was answered yet"), PiState(state.e, cost)
    if c is None and gains.error is ErrorForm.INVERSE:
        return hold("the cost of a request is not known yet"), PiState(state.e, cost)
    e = error(gains.error, y, m.set_point, c or 0.0)
    # The first error stands for its predecessor too: the start makes no proportional jump.
    previous = e if state.e is None else state.e
    proportional = gains.K * (e - previous)
    integral = gains.K * (1 - gains.a) * previous * dt
    u = m.applied + proportional + integral
    terms = {"applied": m.applied, "proportional": proportional, "integral": integral}
    why = f"response {y:.3f} s against set point {m.set_point:.3f} s"
    return Demand(u, why, terms, {"y": y, "error": e}).clipped(lo, hi), PiState(e, cost)

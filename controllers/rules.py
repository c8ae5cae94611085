"""`rules`: the paper's RR+rules baseline (§5): a core more at RT ≥ 0.8 SLA, one less at ≤ 0.2."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controllers.measurement import Demand, Measurement, hold


@dataclass(frozen=True, slots=True)
class RulesGains:
    """Thresholds as shares of the SLA, step in cores, `every` in seconds."""

    up_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    down_at: Annotated[float, Field(ge=0, lt=1)] = 0.2
    step: Annotated[float, Field(gt=0, le=4096)] = 1.0
    every: Annotated[float, Field(gt=0, le=3600)] = 15.0


@dataclass(frozen=True, slots=True)
class RulesState:
    """Seconds since the last decision."""

    elapsed: float = 0.0


def rules_step(
    gains: RulesGains,
    state: RulesState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, RulesState]:
    """Return the demand and the next state; between decisions it holds."""
    elapsed = (state or RulesState()).elapsed + dt
    m = measurement
    if elapsed < gains.every:
        return hold(f"decides every {gains.every:g} s"), RulesState(elapsed)
    y = 0.0 if m.idle else m.effective_response_time
    if y is None:
        return hold("nothing was answered yet"), RulesState(elapsed)
    if y >= gains.up_at * m.sla:
        step, why = gains.step, f"response {y:.3f} s ≥ {gains.up_at:g} SLA"
    elif y <= gains.down_at * m.sla:
        step, why = -gains.step, f"response {y:.3f} s ≤ {gains.down_at:g} SLA"
    else:
        step, why = 0.0, f"response {y:.3f} s between the thresholds"
    terms = {"applied": m.applied, "step": step}
    return Demand(m.applied + step, why, terms, {"y": y}).clipped(lo, hi), RulesState()

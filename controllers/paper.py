"""`paper`: the literal controller of the ROMA paper, for comparisons; use `pi` instead.

    e(k) = 1/R° - 1/RT(k)
    u(k) = u(k-1) + K·(e(k) - a·e(k-1))        eq. 11, rounded up to `round_up`

RT is the measured response time and nothing else: the SLA's statistic over the requests answered in
the period (the paper's SLAs are on the mean). Idle, or nothing answered: the minimum, and e(k) = 0.
u(k-1) is what was applied. The authors' public code aims for the SLA itself: `sla.alpha: 1`.

The literal reading has these effects, which a comparison is meant to show:

- e is in requests per second, not in cores: it is bounded by 1/R° when slow and by nothing when
  fast. So it adds cores slowly and takes them away fast, most for models with short responses.
- No age: a model whose requests all take longer than a period gets the minimum.
- Refused requests leave no trace: fast answers to the few that were admitted take cores away.
- Rounding up a change below `round_up` changes nothing downwards and everything upwards.
- K is per period whatever the period's length.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controllers.measurement import Demand, Measurement


@dataclass(frozen=True, slots=True)
class PaperGains:
    """K in core·s, a the zero, `round_up` in cores (0: none).

    The defaults are those of the authors' public code, u(k) = u(k-1) + 0.21·Δe + 0.17·e, hence
    K = 0.21 + 0.17 and a = 0.21/K. The paper prints K = 0.15, a = 0.11 (§5).
    """

    K: Annotated[float, Field(gt=0, le=100)] = 0.38
    a: Annotated[float, Field(ge=0, lt=1)] = 0.553
    round_up: Annotated[float, Field(ge=0, le=1)] = 0.1


@dataclass(frozen=True, slots=True)
class PaperState:
    """e(k-1), in 1/s."""

    e: float = 0.0


def paper_step(
    gains: PaperGains,
    state: PaperState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, PaperState]:
    """Return the demand and the next state; see the module docstring."""
    m = measurement
    if m.idle or m.response_time is None or m.response_time <= 0:
        return Demand(lo, "idle, or nothing was answered", {"minimum": lo}), PaperState()
    # A microsecond stands for everything faster, or 1/RT could be infinite.
    e = 1 / m.set_point - 1 / max(m.response_time, 1e-6)
    previous = (state or PaperState()).e
    change = gains.K * (e - gains.a * previous)
    u = m.applied + change
    why = f"mean response {m.response_time:.3f} s against set point {m.set_point:.3f} s"
    facts = {"y": m.response_time, "error": e}
    demand = Demand(u, why, {"applied": m.applied, "change": change}, facts)
    if gains.round_up:
        # 1e-9: 0.1 + 0.2 is 0.3, although the floats are a hair above.
        demand = demand.with_adjustment(
            math.ceil(u / gains.round_up - 1e-9) * gains.round_up, "rounding"
        )
    return demand.clipped(lo, hi), PaperState(e)

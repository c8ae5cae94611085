"""`captain`: Autothrottle's per-container heuristic, driven by how often CFS throttles.

Source: Wang et al., *Autothrottle: A Practical Bi-Level Approach to Resource Management for
SLO-Targeted Microservices*, NSDI 2024 ("Captains"), with the constants of the authors' public code.
With p the share of quota periods that were throttled and p* its target:

    margin ← max(0, margin + p − p*)
    p > α·p*, right after a cut:   u = before + (before − after)      roll back, and as much again
    p > α·p*:                      u = u·(1 + p − α·p*)               scale up
    else:  s = max(usage) + margin·stdev(usage) over the history
           s ≤ 0.9·u:              u = max(s, 0.5·u)                  scale down

It sees no request, no queue and no response time. It differs from the publication as follows:

- p* is a constant. In the paper a learner (the Tower) moves it every minute, from the latencies,
  along a ladder from 0 to 0.3; so choose `target` for each comparison.
- Usage comes as one average per control period (1 s), in the paper per quota period (0.1 s). The
  same 5 s of history hold 5 values instead of 50, and the maximum misses peaks within a second.
- A cut is judged once, one control period after it; in the paper after each quota period. The
  rollback is that period's decision; in the paper a scale-up may follow within the same second.
- No cut before the history is full; in the paper it starts with zeros.
- u is what was applied, so a cut by the supervisor in a shortage does not count as a cut here.
"""

from dataclasses import dataclass
from statistics import stdev
from typing import Annotated

from pydantic import Field

from controllers.base import clip
from controllers.history import History, Used, length, remember
from controllers.measurement import UNREAD, Demand, Measurement, hold


@dataclass(frozen=True, slots=True)
class CaptainGains:
    """p* and α (throttling above α·p* is too much), `history` in seconds, the bounds of a cut.

    `cut_at`: cut only if the result is at most this share of u. `cut_to`: never cut below this
    share of u at once. `margin` is the first safety margin, in standard deviations.
    """

    target: Annotated[float, Field(ge=0, lt=1)] = 0.1
    alpha: Annotated[float, Field(ge=1, le=100)] = 3.0
    history: Annotated[float, Field(gt=0, le=3600)] = 5.0
    cut_at: Annotated[float, Field(gt=0, le=1)] = 0.9
    cut_to: Annotated[float, Field(gt=0, le=1)] = 0.5
    margin: Annotated[float, Field(ge=0, le=100)] = 3.0


@dataclass(frozen=True, slots=True)
class CaptainState:
    """The margin, past usage, and the target of a rollback of the last cut (None: no cut)."""

    margin: float
    history: History = ()
    rollback: float | None = None


def captain_step(
    gains: CaptainGains,
    state: CaptainState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, CaptainState]:
    """Return the demand and the next state; see the module docstring."""
    m = measurement
    past = state or CaptainState(gains.margin)
    if m.usage is None:
        return hold(UNREAD), past
    # Where nobody reports it, this law is refused when roma.yaml is checked.
    throttled = m.throttled or 0.0
    history = remember(past.history, Used(dt, m.usage / dt), gains.history)
    margin = max(0.0, past.margin + throttled - gains.target)
    excess = throttled - gains.alpha * gains.target
    facts = {"throttled": throttled, "margin": margin}
    rollback = None
    if excess > 0 and past.rollback is not None:
        u, why = past.rollback, "the last cut was too much"
    elif excess > 0:
        u, why = m.applied * (1 + excess), "throttled too often"
    else:
        u, why = clip(m.applied, lo, hi), "throttled little, used much of it"
        needed = _needed(history, margin, gains.history)
        if needed is not None and needed <= gains.cut_at * m.applied:
            u = clip(max(needed, gains.cut_to * m.applied), lo, hi)
            why = f"{needed:.2f} cores would have been enough"
            rollback = 2 * m.applied - u if u < m.applied else None
    why = f"{why} (throttled in {throttled:.0%} of the quota periods)"
    demand = Demand(m.applied, why, {"applied": m.applied}, facts).with_adjustment(u, "step")
    return demand.clipped(lo, hi), CaptainState(margin, history, rollback)


def _needed(history: History, margin: float, span: float) -> float | None:
    """Return the cores that would have carried the history, None before it is full."""
    if len(history) < 2 or length(history) < span - history[0].dt / 2:
        return None
    cores = [used.cores for used in history]
    return max(cores) + margin * stdev(cores)

"""`adaptive`: what the load needs, plus what the backlog needs, plus an integral of the error.

    y  = max(response statistic, age of the oldest waiting or running request)
    λc = max(0, EWMA(arrivals - GPU completions))
    ff = ĉ·(λc + 1/R°)/W             processor sharing: μ·u - λ = 1/τ, with μ = 1/c
    bl = ĉ·max(0, N - λ·R°)/(T_d·W)  N beyond Little's law leaves within T_d
    I += K·max(ĉ/(R°·W), surplus)·clip(1 - R°/y, ±1)
    u  = clip(ff + bl + I, lo, hi)

W executables share the model. Feed-forward makes a burst cost one period instead of many; the
integral corrects what the estimate of ĉ misses. I is rebuilt from what was applied each period;
a surplus (I > 0 while too fast: a start with many cores, a failed actuation, γ) is given back in
proportion, not in steps of ĉ/R° that a small model would need minutes for.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controllers.base import clip
from controllers.cost import UNKNOWN, Cost
from controllers.measurement import Demand, Measurement, hold
from roma.stats import ewma


@dataclass(frozen=True, slots=True)
class AdaptiveGains:
    """K is a dimensionless loop gain per period, stable with four periods of dead time.

    `drain_time` is T_d in seconds; `rise` and `fall` weigh a new arrival rate when it is above or
    below the average: load that comes must be served now, load that goes may come back;
    `idle_decay` is per second; `cost` is a profile in core-s, None to learn it.
    """

    K: Annotated[float, Field(gt=0, le=1)] = 0.15
    drain_time: Annotated[float, Field(gt=0, le=60)] = 1.0
    rise: Annotated[float, Field(gt=0, le=1)] = 0.9
    fall: Annotated[float, Field(gt=0, le=1)] = 0.3
    idle_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    cost: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """The averages (per second), the cost estimate, and the last feed-forward and backlog terms."""

    arrivals: float | None = None
    for_cpu: float | None = None
    cost: Cost = UNKNOWN
    model_terms: float | None = None


def adaptive_step(
    gains: AdaptiveGains,
    state: AdaptiveState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, AdaptiveState]:
    """Return the demand and the next state; see the module docstring."""
    m = measurement
    past = state or AdaptiveState()
    arrival_rate = m.arrivals / dt
    rising = past.arrivals is None or arrival_rate > past.arrivals
    arrivals = ewma(past.arrivals, arrival_rate, gains.rise if rising else gains.fall)
    for_cpu = _for_cpu(gains, past.for_cpu, arrival_rate, m.completed_gpu / dt)
    cost = past.cost.update(m.usage, m.completed_here, gains.cost)
    c = cost.value(gains.cost)
    if m.idle:
        cores = clip(m.applied * gains.idle_decay**dt, lo, hi)
        # The integral is frozen by restarting it bumplessly when load returns.
        return Demand(cores, "idle: nothing arrives, waits or runs"), AdaptiveState(
            arrivals, for_cpu, cost
        )
    if c is None:
        return hold("the cost of a request is not known yet"), AdaptiveState(
            arrivals, for_cpu, cost
        )
    sp, W = m.set_point, m.workers
    feed_forward = c * (max(0.0, for_cpu) + 1 / sp) / W
    in_system = m.waiting + m.in_flight
    backlog = c * max(0.0, in_system - arrivals * sp) / (gains.drain_time * W)
    margin = c / sp / W
    y = m.effective_response_time
    integral = _rebuilt(state, m.applied, feed_forward + backlog)
    if y is not None:
        # In units of the margin: clip(1/R° - 1/y, ±1/R°)·R°, in [-1, 1].
        e = clip(1 - sp / y, -1.0, 1.0)
        surplus = integral if e < 0 else 0.0
        integral += gains.K * dt * max(margin, surplus) * e
    # It may take back the margin of the feed-forward, never the load itself.
    integral = clip(integral, -margin, hi)
    u = clip(feed_forward + backlog + integral, lo, hi)
    terms = {"feed_forward": feed_forward, "backlog": backlog, "integral": integral, "cost": c}
    if y is not None:
        terms["y"] = y
    why = f"{arrivals:.1f} req/s at {c * 1000:.1f} core-ms, {in_system} in the system"
    return Demand(u, why, terms), AdaptiveState(arrivals, for_cpu, cost, feed_forward + backlog)


def _for_cpu(gains: AdaptiveGains, past: float | None, arrivals: float, gpu: float) -> float:
    """Return the average rate that no GPU takes.

    Without GPUs it follows a rise as fast as arrivals do. With them, completions trail arrivals
    by noise, and averaging that noise faster upwards than downwards would invent load.
    """
    rate = arrivals - gpu
    rising = gpu == 0 and (past is None or rate > past)
    return ewma(past, rate, gains.rise if rising else gains.fall)


def _rebuilt(state: AdaptiveState | None, applied: float, model_terms: float) -> float:
    """Return I as it must have been for `applied` to result from the last (ff + bl).

    A law that starts takes the present terms instead, so that u does not jump; one that comes
    back from idle starts at 0, because what was applied then stood for no load.
    """
    if state is None:
        return applied - model_terms
    return 0.0 if state.model_terms is None else applied - state.model_terms

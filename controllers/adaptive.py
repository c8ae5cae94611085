"""`adaptive`: what the load needs, plus its noise, plus the backlog, plus an integral of the error.

    λc = EWMA(r)        r  = requests/s that GPUs leave to CPUs (see `_overflow`)
    σ  = EWMA(|r - λc|) what a period differs from the one before
    ff = ĉ·(λc + z·σ + a/R°)/W       processor sharing: μ·u - λ = 1/τ, with μ = 1/c
    bl = ĉ·max(0, N - λ·R°)/(T_d·W)  N beyond Little's law leaves within T_d
    I += K·dt·max(ĉ·a/(R°·W), s)·clip(1 - R°/y + ρ, ±1)
    u  = clip(max(ff + bl + I, min(u, n·ĉ/(φ·R°))), lo, hi)

    y  = max(response statistic, age of the oldest waiting or running request)
    a  = λc/λ           the CPUs' share of the load; 1 without GPUs
    ρ  = refused as too late/λ; if any were, s is what was applied, else the surplus I > 0
    n  = requests that run here, begun with the cores that were applied; φ = 0.6

W executables share the model. Cores are set before the load of a period is known, so what decides
about late requests is how far a period may exceed the last ones: z·σ is that margin, learnt from
the load itself (as TCP learns its timeout: Jacobson, SIGCOMM 1988). It is small where arrivals are
smooth, and large where they jump. Feed-forward makes a burst cost one period instead of many; the
integral corrects what the estimate of ĉ misses. I is rebuilt from what was applied each period. A
surplus (a start with many cores, a failed actuation, γ) is given back, and cores are added while
requests are refused, in proportion: steps of ĉ/R° would take minutes for a small model.

What runs keeps its cores: it began because they would answer it in time, and fewer would not. That
matters where a request outlasts a period, and where the next one follows late.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from controllers.base import clip
from controllers.cost import UNKNOWN, Cost
from controllers.measurement import Demand, Measurement, hold, idle
from roma.stats import ewma

NOISE_WEIGHT = 0.2
"""σ remembers about five periods: fewer make it noise itself."""

NONE = 1e-3
"""GPU completions per second that are none: an average falls below it seconds after the last."""

HELD = 0.6
"""φ: what runs keeps the cores with which it ends within this part of R°; it waited before."""

EVIDENCE = 2.0
"""Overflow is believed up to twice what CPUs did or GPUs will not reach in time: it may double."""


@dataclass(frozen=True, slots=True)
class AdaptiveGains:
    """z is in mean deviations, K a loop gain per second, stable with four periods of 1 s late.

    `z` buys fewer late requests with more cores: the one gain to change. The same z buys more with
    a shorter period: σ is between periods. `drain_time` is T_d in seconds. `follow` is how much of
    a new rate of requests is believed within a second, `overflow` of one that rises because GPUs
    took less (0 < w ≤ 1); `idle_decay` is per second too.
    """

    z: Annotated[float, Field(ge=0, le=10)] = 0.7
    K: Annotated[float, Field(gt=0, le=1)] = 0.3
    drain_time: Annotated[float, Field(gt=0, le=60)] = 1.0
    follow: Annotated[float, Field(gt=0, le=1)] = 0.8
    overflow: Annotated[float, Field(gt=0, le=1)] = 0.3
    idle_decay: Annotated[float, Field(gt=0, le=1)] = 0.8


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """λ, what GPUs do of it, λc and σ (per second), the cost estimate, the last (ff + bl).

    The last is None after idleness.
    """

    arrivals: float | None = None
    by_gpu: float | None = None
    for_cpu: float | None = None
    noise: float = 0.0
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
    after = _observed(gains, state or AdaptiveState(), m, dt)
    c = after.cost.value(m.profile)
    if m.idle:
        # The integral is frozen by restarting it bumplessly when load returns.
        return idle(m.applied, gains.idle_decay**dt).within(lo, hi), after
    if c is None:
        return hold("the cost of a request is not known yet"), after
    sp, W, arrivals = m.set_point, m.workers, after.arrivals or 0.0
    load = max(0.0, after.for_cpu or 0.0)
    margin = c / (sp * W) * (min(1.0, load / arrivals) if arrivals else 1.0)
    # Noise counts up to the load itself: around nothing it is no reason for cores.
    feed_forward = c * (load + gains.z * min(after.noise, load)) / W + margin
    in_system = m.waiting + m.in_flight
    backlog = c * max(0.0, in_system - arrivals * sp) / (gains.drain_time * W)
    y = m.effective_response_time
    integral = _rebuilt(state, m.applied, feed_forward + backlog)
    if y is not None:
        # clip(1/R° - 1/y, ±1/R°) in units of 1/R°. y ends at the deadline, where requests are
        # refused: how many were says how far beyond it is.
        refused = m.shed / max(m.arrivals, m.shed) if m.shed else 0.0
        e = clip(1 - sp / y + refused, -1.0, 1.0)
        step = m.applied if refused else integral if e < 0 else 0.0
        integral += gains.K * dt * max(margin, step) * e
    # It may take back the margin of the feed-forward, never the load itself.
    integral = clip(integral, -margin, hi)
    why = f"{arrivals:.1f} req/s at {c * 1000:.1f} core-ms, {in_system} in the system"
    terms = {"feed_forward": feed_forward, "backlog": backlog, "integral": integral}
    facts = {"cost": c, "load": load, "noise": after.noise} | ({} if y is None else {"y": y})
    demand = Demand(feed_forward + backlog + integral, why, terms, facts).within(lo, hi)
    u = demand.cores or 0.0
    held = max(0.0, min(m.applied, m.in_flight_here * c / (HELD * sp)) - u)
    demand = demand.moved(u + held, "running").within(lo, hi)
    stalled = m.applied + gains.K * dt * margin
    if y is not None and m.response_time is None and (demand.cores or 0.0) < stalled:
        # Nothing ends although requests are older than R°: whatever the load says, this is too few.
        demand = demand.moved(stalled, "stalled").within(lo, hi)
    return demand, replace(after, model_terms=feed_forward + backlog + held)


def _observed(
    gains: AdaptiveGains, past: AdaptiveState, m: Measurement, dt: float
) -> AdaptiveState:
    """Return the averages after a period."""
    by_gpu = ewma(past.by_gpu, m.completed_gpu / dt, _within(dt, gains.follow))
    rate = _overflow(m, dt, by_gpu)
    expected = rate if past.for_cpu is None else past.for_cpu
    weight = gains.overflow if m.completed_gpu and rate > expected else gains.follow
    return AdaptiveState(
        arrivals=ewma(past.arrivals, m.arrivals / dt, _within(dt, gains.follow)),
        by_gpu=by_gpu,
        for_cpu=ewma(past.for_cpu, rate, _within(dt, weight)),
        noise=ewma(past.noise, abs(rate - expected), NOISE_WEIGHT),
        cost=past.cost.update(m),
    )


def _within(dt: float, weight: float) -> float:
    """Return what a weight per second is for a period of `dt` seconds."""
    return 1 - float((1 - weight) ** dt)


def _overflow(m: Measurement, dt: float, by_gpu: float) -> float:
    """Return the requests per second that arrived for CPUs.

    Where GPUs serve the model, arrivals minus their completions are mostly noise: what waits for a
    GPU at the end of a period looks like load. What CPUs did, and what waits beyond the GPUs'
    reach within R°, is evidence of a real one. It came within R° or a period, whichever is longer.
    The reach is by the average `by_gpu`: a short period holds a handful of completions.
    """
    rate = (m.arrivals - m.completed_gpu) / dt
    if by_gpu <= NONE:
        return rate
    beyond = max(0.0, m.waiting + m.in_flight - by_gpu * m.set_point)
    evidence = m.completed_cpu / dt + beyond / max(dt, m.set_point)
    return min(rate, EVIDENCE * evidence)


def _rebuilt(state: AdaptiveState | None, applied: float, model_terms: float) -> float:
    """Return I as it must have been for `applied` to result from the last (ff + bl).

    A law that starts takes the present terms instead, so that u does not jump; one that comes
    back from idle starts at 0, because what was applied then stood for no load.
    """
    if state is None:
        return applied - model_terms
    return 0.0 if state.model_terms is None else applied - state.model_terms

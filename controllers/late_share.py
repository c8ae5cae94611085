"""`late_share`: the cores that queueing theory asks for, with a margin that the late share sets.

    u = ĉλ + κ·(n(λ) - ĉλ)        divided among the W executables that share the model
    log κ += s·(late - 3/4·ε·requests)      a period

λ is the rate of requests now (controllers/rate.py), n(λ) what it needs if its arrivals are
Poisson's (controllers/staffing.py), ε the share that the promise allows to be late. κ is what that
theory lacks: less than 1 where arrivals are smoother, more where they come in bursts. Quantile
tracking (Gibbs and Candès, NeurIPS 2021) makes the late share in the long run what was aimed at,
whatever the plant is. What was late while the executable had less than was asked for, or all that
it may have, leaves κ as it is.

Where GPUs take a part, the load of the CPUs is what these leave, and κ multiplies all of n(λ): what
no CPU does waits for a GPU and is not lost. What waits beyond the reach of the GPUs leaves within
half a response time.
"""

from dataclasses import dataclass
from math import exp
from typing import Annotated

from pydantic import Field

from controllers import rate as rates
from controllers.base import clip
from controllers.cost import UNKNOWN, Cost
from controllers.measurement import Demand, Measurement, idle
from controllers.rate import Rate
from controllers.staffing import Promise, bucket_need, needed
from roma.stats import ewma

AIM = 0.75
"""The set point, as a share of the budget."""

LEAST, MOST = 0.05, 4.0
"""Bounds of κ."""

FASTEST = 3.0
"""Most that log κ moves in a second."""

MET = 0.98
"""Share of a demand with which it counts as met."""

FOLLOW = 0.8
"""Weight, within a second, of a new rate of the GPUs in its average."""

NONE = 1e-3
"""GPU completions per second that are none: an average falls below it seconds after the last."""

REACH = 0.8
"""The part of the response time within which a GPU must reach what waits for it."""

EVIDENCE = 2.0
"""Overflow is believed up to twice what CPUs did or GPUs will not reach in time: it may double."""

REST = 0.8
"""Of its cores, what a model of unknown cost keeps after a second in which nothing was asked."""

MEAN_BUDGET = 0.2
"""Late share beside a promise on the mean, which has no budget."""


@dataclass(frozen=True, slots=True)
class LateShareGains:
    """`step` is s: how much of a nat one late request moves the margin."""

    step: Annotated[float, Field(gt=0, le=1)] = 0.1


@dataclass(frozen=True, slots=True)
class LateShareState:
    """λ, the margin κ, the cost estimate, the last demand, completions of GPUs per second."""

    rate: Rate
    margin: float = 1.0
    cost: Cost = UNKNOWN
    asked: float | None = None
    by_gpu: float | None = None


def late_share_step(
    gains: LateShareGains,
    state: LateShareState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, LateShareState]:
    """Return the demand and the next state; see the module docstring."""
    m, past = measurement, state or LateShareState(rates.NOTHING)
    by_gpu = ewma(past.by_gpu, m.completed_gpu / dt, 1 - float((1 - FOLLOW) ** dt))
    rate = past.rate.update(dt * _load(m, dt, by_gpu), dt)
    cost = past.cost.update(m)
    c = cost.value(m.profile)
    if c is None:
        if m.idle:
            demand = idle(m.applied, float(REST**dt)).within(lo, hi)
            return demand, LateShareState(rate, past.margin, cost, None, by_gpu)
        # On all its threads a request is as fast as it can be, whatever it costs.
        why = "the cost of a request is not known yet"
        demand = Demand(float(m.threads), why, {"threads": float(m.threads)}).within(lo, hi)
        return demand, LateShareState(rate, past.margin, cost, None, by_gpu)
    budget = AIM * (MEAN_BUDGET if m.budget is None else m.budget)
    margin = clip(past.margin * exp(_change(gains, past, m, budget, dt=dt, hi=hi)), LEAST, MOST)
    promise = Promise(m.sla, budget, m.quota_period, m.bucket)
    work = c * rate.mean
    if by_gpu > NONE:
        cores = margin * bucket_need(work, c, promise)
    else:
        cores = needed(rate.mean, c, m.threads, promise, margin)
    beyond = max(0.0, m.waiting - by_gpu * m.sla * REACH)
    drain = 2 * c * beyond / max(m.sla, 2 * dt)
    why = f"{rate.mean:.1f} req/s at {c * 1000:.1f} core-ms, margin x {margin:.2f}"
    terms = {"load": work / m.workers, "margin": (cores - work) / m.workers}
    facts = {"cost": c, "load": rate.mean, "kappa": margin}
    demand = Demand(cores / m.workers, why, terms, facts)
    demand = demand.moved(max(cores, drain) / m.workers, "backlog").within(lo, hi)
    return demand, LateShareState(rate, margin, cost, demand.cores, by_gpu)


def _change(
    gains: LateShareGains,
    past: LateShareState,
    m: Measurement,
    budget: float,
    *,
    dt: float,
    hi: float,
) -> float:
    """Return by how much log κ changes."""
    late = max(0.0, m.violations - m.failed)
    change = gains.step * (late - budget * max(m.arrivals, late))
    asked = past.asked
    if change > 0 and asked is not None and (m.applied < MET * asked or asked >= hi):
        return 0.0
    return clip(change, -FASTEST * dt, FASTEST * dt)


def _load(m: Measurement, dt: float, by_gpu: float) -> float:
    """Return the requests per second that arrived for CPUs.

    Where GPUs serve the model, arrivals minus their completions are mostly noise. What CPUs did,
    and what waits beyond the GPUs' reach, is evidence of a real load.
    """
    rate = (m.arrivals - m.completed_gpu) / dt
    if by_gpu <= NONE:
        return max(0.0, rate)
    reach = m.sla * REACH
    beyond = max(0.0, m.waiting + m.in_flight - by_gpu * reach)
    evidence = m.completed_cpu / dt + beyond / max(dt, reach)
    return max(0.0, min(rate, EVIDENCE * evidence))

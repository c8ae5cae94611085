"""`late_share`: the cores that queueing theory asks for, with a margin that the late share sets.

    u = ĉλ + κ·(n(λ) - ĉλ)        divided among the W executables that share the model
    x += s·(late - 3/4·ε·requests)  a period;  κ = e^x above 0, 1 + x below it

λ is the rate of requests now (controllers/rate.py), n(λ) what it needs if its arrivals are
Poisson's (controllers/staffing.py), ε the share that the promise allows to be late. κ is what that
theory lacks: less than 1 where arrivals are smoother, more where they come in bursts. Below 0 it
takes from the load itself, ĉλ·(1 + κ/2): where a promise leaves the time, requests wait for each
other, and no core for them. Quantile tracking (Gibbs and Candès, NeurIPS 2021) makes the late share
in the long run what was aimed at, whatever the plant is. What was late while the executable had
less than was asked for, or all that it may have, raises κ to 1 at most: to theory, below
which it is the law that dared.

What waits leaves within half a response time, or a period if that is longer. Unless GPUs serve the
model, one that is seldom asked has no less than one request in time needs, whatever κ has become.

Where GPUs take a part, the load of the CPUs is what these leave, and κ, e^(2x) below 0, multiplies
all of n(λ): what no CPU does waits for a GPU and is not lost. What GPUs will reach needs no cores.
"""

from dataclasses import dataclass
from math import exp
from typing import Annotated

from pydantic import Field

from controllers import rate as rates
from controllers.base import clip
from controllers.cost import UNKNOWN, Cost
from controllers.measurement import Demand, Measurement, idle
from controllers.rate import RequestRate
from controllers.staffing import Promise, bucket_need, needed
from roma.domain.stats import ewma

AIM = 0.75
"""The set point, as a share of the budget."""

LEAST, MOST = -2.0, 1.4
"""Bounds of x: half the cores of the load, and what waits brings the rest; four times what theory
adds to the load."""

MOST_ON_GPU = 0.3
"""Most of x where GPUs take a part: κ multiplies the whole load there, and what is late is seldom
late for want of cores."""

SHORT = 2.0
"""−κ at which nothing would be left of the cores for the load."""

ON_GPU = 2.0
"""Times x is the logarithm of κ below 0, where GPUs take a part."""

FASTEST, FASTEST_ON_GPU = 3.0, 1.0
"""Most that x moves in a second; where GPUs take a part, requests are late in clusters, and many of
one cluster say no more than one."""

MET, ROUNDED = 0.98, 0.001
"""Share of a demand with which it counts as met, but for so many cores of rounding."""

FOLLOW = 0.8
"""Weight, within a second, of a new rate of the GPUs in its average."""

NO_RATE = 1e-3
"""GPU completions per second that are none: an average falls below it seconds after the last."""

REACH = 0.8
"""The part of the response time within which a GPU must reach what waits for it."""

MAX_OVERFLOW_RATIO = 2.0
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
    """λ, what κ hangs on, the cost estimate, the last demand, completions of GPUs per second."""

    rate: RequestRate
    x: float = 0.0
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
            demand = idle(m.applied, float(REST**dt)).clipped(lo, hi)
            return demand, LateShareState(rate, past.x, cost, None, by_gpu)
        # On all its threads a request is as fast as it can be, whatever it costs.
        why = "the cost of a request is not known yet"
        demand = Demand(float(m.threads), why, {"threads": float(m.threads)}).clipped(lo, hi)
        return demand, LateShareState(rate, past.x, cost, None, by_gpu)
    budget = AIM * (MEAN_BUDGET if m.budget is None else m.budget)
    fastest, most = (FASTEST_ON_GPU, MOST_ON_GPU) if by_gpu > NO_RATE else (FASTEST, MOST)
    change = clip(_change(gains, past, m, budget, hi=hi), -fastest * dt, fastest * dt)
    x = clip(past.x + change, LEAST, most)
    promise = Promise(m.sla, budget, m.quota_period, m.bucket)
    work = c * rate.mean
    # Of the load: what it teaches fades after so long a silence that it may be another one.
    present = min(1.0, rate.mean * rates.MEMORY)
    if by_gpu > NO_RATE:
        kappa = exp(x if x > 0 else ON_GPU * x)
        cores = kappa * bucket_need(work, c, promise)
    else:
        kappa = 1 + present * (exp(x) - 1) if x > 0 else 1 + x
        cores = _for_cpus(rate.mean, c, m.threads, promise, kappa)
    if m.on_gpu:
        cores *= present  # a GPU answers a request after silence
    elif present < 1:
        cores = max(cores, m.workers * bucket_need(0.0, c, promise))
    beyond = max(0.0, m.waiting - by_gpu * m.sla * REACH)
    half = m.sla / 2
    drain = work + c * (beyond - half * rate.mean) / max(half, dt) if beyond else 0.0
    why = f"{rate.mean:.1f} req/s at {c * 1000:.1f} core-ms, margin x {kappa:.2f}"
    terms = {"load": work / m.workers, "margin": (cores - work) / m.workers}
    facts = {"cost": c, "load": rate.mean, "kappa": kappa}
    demand = Demand(cores / m.workers, why, terms, facts)
    demand = demand.with_adjustment(max(cores, drain) / m.workers, "backlog").clipped(lo, hi)
    return demand, LateShareState(rate, x, cost, demand.cores, by_gpu)


def _for_cpus(rate: float, cost: float, threads: int, promise: Promise, kappa: float) -> float:
    """Return the cores for `rate` requests per second that no GPU serves."""
    if kappa < 0:
        return rate * cost * (1 + kappa / SHORT)
    return needed(rate, cost, threads, promise, kappa)


def _change(
    gains: LateShareGains,
    past: LateShareState,
    m: Measurement,
    budget: float,
    *,
    hi: float,
) -> float:
    """Return by how much x changes."""
    late = max(0.0, m.violations - m.failed)
    change = gains.step * (late - budget * max(m.arrivals, late))
    asked = past.asked
    if change > 0 and asked is not None and (m.applied < MET * asked - ROUNDED or asked >= hi):
        return min(change, max(0.0, -past.x))
    return change


def _load(m: Measurement, dt: float, by_gpu: float) -> float:
    """Return the requests per second that arrived for CPUs.

    Where GPUs serve the model, arrivals minus their completions are mostly noise. What CPUs did,
    and what waits beyond the GPUs' reach, is evidence of a real load.
    """
    rate = (m.arrivals - m.completed_gpu) / dt
    if by_gpu <= NO_RATE:
        return max(0.0, rate)
    reach = m.sla * REACH
    beyond = max(0.0, m.waiting + m.in_flight - by_gpu * reach)
    evidence = m.completed_cpu / dt + beyond / max(dt, reach)
    return max(0.0, min(rate, MAX_OVERFLOW_RATIO * evidence))

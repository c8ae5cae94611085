"""`late_share`: the cores that queueing theory asks for, with a margin set by the late share.

    u = ĉλ + κ·(n(λ) - ĉλ)        divided among the W executables that serve the model (`part`)
    x += s·(late - 3/4·ε·requests)/d  a period;  κ = e^x above 0, 1 + x below it

λ is the present rate of requests (controllers/rate.py), n(λ) the cores for it
(controllers/staffing.py), ε the share that the promise allows to be late. d is 1 for Poisson
arrivals and more where several come at a time (controllers/dispersion.py): n(λ) allows for that,
and what is late together is one piece of news. κ corrects the theory: it is less than 1 where
arrivals are smoother, more where they come in bursts. Below 0 it takes from the load itself, ĉλ·(1
+ κ/2): where a promise leaves the time, requests wait for each other instead of getting cores. This
is quantile tracking (Gibbs and Candès, NeurIPS 2021): in the long run the late share becomes the
set point, whatever the plant is. Requests that were late while the executable had less than was
asked for, or its maximum, or before anything was asked for, raise κ to 1 at most, the value of the
theory: only below it did the law itself take the risk. A promise on the mean R* has the excess of
its window's mean over αR* in the place of late - 3/4·ε·requests (`_excess`).

Waiting requests leave within half a response time, or a period if that is longer. Unless GPUs serve
the model, a rarely used one has at least what one request in time needs, whatever κ is.

Where GPUs take a part, the load of the CPUs is what these leave, and κ = e^x multiplies all of
n(λ): what no CPU does waits for a GPU and is not lost. What GPUs will reach needs no cores, whether
or not the cost of a request is known.
"""

from dataclasses import dataclass
from math import exp
from typing import Final

from controllers.base import clip
from controllers.cost import Cost
from controllers.dispersion import Dispersion
from controllers.late_share_gains import LateShareGains
from controllers.measurement import IDLE, UNREAD, Demand, Measurement, hold, resting
from controllers.rate import MEMORY, RequestRate
from controllers.staffing import Promise, bucket_need, needed
from roma.domain.stats import ewma

AIM: Final = 0.75
"""The set point, as a share of the budget."""

LEAST: Final = -2.0
MOST: Final = 1.4
"""Bounds of x: half the cores of the load, and what waits brings the rest; four times what theory
adds to the load."""

MOST_ON_GPU: Final = 0.6
"""Upper bound of x where GPUs take a part: κ multiplies the whole load there, and requests are
rarely late for lack of cores."""

SHORT: Final = 2.0
"""−κ at which no cores would be left for the load."""

FASTEST: Final = 3.0
"""Most that x moves in a second."""

MET: Final = 0.98
ROUNDED: Final = 0.001
"""Share of a demand from which it counts as met, and the tolerance for rounding in cores."""

FOLLOW: Final = 0.8
"""Weight, after a second, of a new GPU rate in its average."""

NO_RATE: Final = 1e-3
"""GPU completions per second that count as none: an average falls below it seconds after the
last."""

REACH: Final = 0.8
"""The part of the response time within which a GPU must reach what waits for it."""

MAX_OVERFLOW_RATIO: Final = 2.0
"""The overflow estimate is at most twice what CPUs did or GPUs will not reach in time: it may
double."""

REST: Final = 0.8
"""Share of its cores that a model of unknown cost keeps after a second without requests."""

MEAN_BUDGET: Final = 0.2
"""Budget that theory assumes for a promise on the mean, which has none (see `_excess`)."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`: one in every tick
class LateShareState:
    """λ, the x that sets κ, the cost estimate, the last demand, what GPUs complete, the dispersion.

    `by_gpu` is in requests per second.
    """

    rate: RequestRate
    x: float
    cost: Cost
    asked: float | None
    by_gpu: float | None
    dispersion: Dispersion

    def __init__(
        self,
        rate: RequestRate,
        x: float = 0.0,
        cost: Cost | None = None,
        asked: float | None = None,
        by_gpu: float | None = None,
        *,
        dispersion: Dispersion | None = None,
    ) -> None:
        self.rate = rate
        self.x = x
        self.cost = cost or Cost()
        self.asked = asked
        self.by_gpu = by_gpu
        self.dispersion = dispersion or Dispersion()


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
    m, past = measurement, state or LateShareState(RequestRate())
    by_gpu = ewma(past.by_gpu, m.completed_gpu / dt, 1 - float((1 - FOLLOW) ** dt))
    load = _load(m, dt, by_gpu)
    dispersion = past.dispersion.update(m.arrivals, dt)
    excess = 1.0 if by_gpu > NO_RATE else dispersion.excess
    rate = past.rate.update(dt * load, dt, excess)
    cost = past.cost.update(m, dt)
    c = cost.value(m.profile)
    if c is None:
        if m.idle or (by_gpu > NO_RATE and not load and not m.in_flight_here):
            why = IDLE if m.idle else "GPUs reach all requests in time"
            demand = resting(m.applied, float(REST**dt), why)
        else:  # on all its threads each request is as fast as possible, whatever its cost
            why = "the cost of a request is not known yet"
            threads = float(m.threads * max(1, m.in_flight_here))
            demand = Demand(threads, why, {"threads": threads})
        demand = demand.clipped(lo, hi)
        if m.usage is None and demand.cores is not None and demand.cores < m.applied:
            demand = hold(UNREAD)
        return demand, LateShareState(rate, past.x, cost, None, by_gpu, dispersion=dispersion)
    budget = AIM * (MEAN_BUDGET if m.budget is None else m.budget)
    change = clip(_change(gains, past, m, budget, hi=hi) / excess, -FASTEST * dt, FASTEST * dt)
    x = clip(past.x + change, LEAST, MOST_ON_GPU if by_gpu > NO_RATE else MOST)
    promise = Promise(m.sla, budget, m.quota_period, m.bucket, excess)
    work = c * rate.mean
    # A share of the load: after so long a silence x may belong to another load, so it fades.
    present = min(1.0, rate.mean * MEMORY)
    if by_gpu > NO_RATE:
        kappa = exp(x)
        cores = kappa * bucket_need(work, c, promise)
    else:
        kappa = 1 + present * (exp(x) - 1) if x > 0 else 1 + x
        cores = _for_cpus(rate.mean, c, m, promise, kappa=kappa, hi=hi)
    if m.on_gpu:
        cores *= present  # a GPU answers the first request after silence
    elif present < 1:
        cores = max(cores, m.workers * bucket_need(0.0, c, promise))
    beyond = max(0.0, m.waiting - by_gpu * m.sla * REACH)
    half = m.sla / 2
    drain = work + c * (beyond - half * rate.mean) / max(half, dt) if beyond else 0.0
    why = f"{rate.mean:.1f} req/s at {c * 1000:.1f} core-ms, margin x {kappa:.2f}"
    terms = {"load": work / m.workers, "margin": (cores - work) / m.workers}
    facts = {"cost": c, "load": rate.mean, "kappa": kappa}
    demand = Demand(cores / m.workers, why, terms, facts)
    demand = demand.with_adjustment(part(cores, m), "smaller_replicas")
    demand = demand.with_adjustment(part(max(cores, drain), m), "backlog").clipped(lo, hi)
    state = LateShareState(rate, x, cost, demand.cores, by_gpu, dispersion=dispersion)
    return demand, state


def part(cores: float, m: Measurement) -> float:
    """Return an executable's part of a model's cores: as much as others, and what they cannot have.

    Replicas on workers of different sizes cannot carry the same load.
    """
    left, among = cores, m.workers
    for most in m.smaller:
        if most * among >= left:
            break
        left, among = left - most, among - 1
    return left / among


def _for_cpus(
    rate: float, cost: float, m: Measurement, promise: Promise, *, kappa: float, hi: float
) -> float:
    """Return the cores for `rate` requests per second that no GPU serves."""
    if kappa < 0:
        return rate * cost * (1 + kappa / SHORT)
    return needed(rate, cost, m.threads, promise, kappa, executables=m.workers, most=hi)


def _change(
    gains: LateShareGains,
    past: LateShareState,
    m: Measurement,
    budget: float,
    *,
    hi: float,
) -> float:
    """Return by how much x changes."""
    change = gains.step * _excess(m, budget)
    # What was late before the law asked for anything was late without it.
    asked = hi if past.asked is None else past.asked
    if change > 0 and (m.applied < MET * asked - ROUNDED or asked >= hi):
        return min(change, max(0.0, -past.x))
    return change


def _excess(m: Measurement, budget: float) -> float:
    """Return how many more requests were late than may be; less than 0 if fewer were.

    With a promise on the mean, response times of R* count as `MEAN_BUDGET` late requests each, and
    in proportion up to one; the set point is αR*. A refused request counts as one, one that its
    late client gave up as an answer at the deadline. An answer whose time is unknown counts as
    none: all of them may be older than the window, or refused inputs.
    """
    if m.budget is not None:
        late = max(0.0, m.violations - m.failed)
        return late - budget * max(m.arrivals, late)
    worst = m.sla / MEAN_BUDGET
    over = m.shed * (worst - m.set_point)
    over += m.given_up * (min(m.deadline, worst) - m.set_point)
    if m.mean_time is not None:
        answered = m.completed_cpu + m.completed_gpu
        over += answered * (min(m.mean_time, worst) - m.set_point)
    return over / worst


def _load(m: Measurement, dt: float, by_gpu: float) -> float:
    """Return the requests per second that arrived for CPUs.

    Where GPUs serve the model, arrivals minus GPU completions are mostly noise. CPU completions,
    and requests waiting beyond the GPUs' reach, are evidence of a real load.
    """
    rate = (m.arrivals - m.completed_gpu) / dt
    if by_gpu <= NO_RATE:
        return max(0.0, rate)
    reach = m.sla * REACH
    beyond = max(0.0, m.waiting + m.in_flight - by_gpu * reach)
    evidence = m.completed_cpu / dt + beyond / max(dt, reach)
    return max(0.0, min(rate, MAX_OVERFLOW_RATIO * evidence))

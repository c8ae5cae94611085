"""Cores that a rate of requests needs: queueing theory for an executable under a quota.

An executable of u cores serves k = ceil(u/p) requests at once, each on p cores, as long as its
token bucket lasts: u·B core-seconds when it is full (B: the quota's period and its burst), and u
more per second. A request is late in either of two ways, and each bounds the cores from below:

* it waits for a slot:  C(k, a)·exp(-(k - a)·(R - T)/(T·v)) ≤ ε,  a = λ·T,  T = c/p
  (Erlang's C, and the tail of M/M/k; v = (ca² + cs²)/2 as Allen and Cunneen have it)
* the bucket is empty:  ρ·exp(-(1 - ρ)·(u·s - c)/(c·v)) ≤ ε,  ρ = λ·c/u,  s = B + max(0, R - P)
  (the tail of the work that G/G/1 has, beyond what the bucket and the slack of R lend)
"""

from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt
from typing import Final

from controllers.rate import MEMORY

SLIVER: Final = 0.02
"""Cores beyond (k - 1)·p from which there are k slots."""

MOST_SLOTS: Final = 4096

LEAST_COST: Final = 1e-9
"""Core-seconds. No request is cheaper; a lower measurement is rounding."""

SERVICE: Final = 0.1
"""cs²: service times have a coefficient of variation of 0.3."""

WORST: Final = 2.2
"""v where arrivals and service vary four times as much: more slots than that needs come last."""

LAST: Final = 4.0
"""Margin from which they are added like all others."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`: one in every tick
class Promise:
    """A share `late` of the requests may take longer than `response_time`.

    Quotas have a `period`, and a full bucket has `bucket` seconds of them. Requests arrive
    `excess` times as variably as Poisson's.
    """

    response_time: float
    late: float
    period: float
    bucket: float
    excess: float

    def __init__(
        self,
        response_time: float,
        late: float,
        period: float,
        bucket: float,
        excess: float = 1.0,
    ) -> None:
        self.response_time = response_time
        self.late = late
        self.period = period
        self.bucket = bucket
        self.excess = excess

    @property
    def variability(self) -> float:
        """The mean v of the squared coefficients of variation of arrivals and service."""
        return (self.excess + SERVICE) / 2


def needed(
    rate: float,
    cost: float,
    threads: int,
    promise: Promise,
    margin: float = 1.0,
    *,
    executables: int = 1,
    most: float = inf,
) -> float:
    """Return the cores for `rate` requests/s of `cost` core-seconds, on `threads` cores each.

    `margin` multiplies what exceeds the load itself, slots as well as cores. The `executables`
    share the cores evenly; each has a slot, however few cores it has, and `most` cores at most.
    """
    cost = max(cost, LEAST_COST)
    work, service = rate * cost, cost / threads
    slots = _slots(rate, service, promise, margin)
    # No cores are asked for slots that an executable cannot have.
    each = max(1, min(ceil(slots / executables), ceil(min(most / threads, MOST_SLOTS))))
    beyond = bucket_need(work, cost, promise) - work
    return max(executables * ((each - 1) * threads + SLIVER), work + margin * beyond)


def _slots(rate: float, service: float, promise: Promise, margin: float) -> int:
    load, spare, v = rate * service, max(0.0, promise.response_time - service), promise.variability
    slots = slots_needed(load, service, spare / v, promise.late)
    wanted = round(load + margin * (slots - load))
    if margin <= 1:
        return max(1, wanted)
    worst = slots_needed(load, service, spare / max(v, WORST), promise.late)
    if wanted > worst:
        wanted = max(worst, round(load + margin**2 / LAST * (slots - load)))
    # The margin adds no more slots than there are requests close together to use them.
    return max(slots, min(wanted, int(rate * MEMORY)))


def slots_needed(load: float, service: float, spare: float, late: float) -> int:
    """Return the fewest slots in which at most a share `late` waits longer than promised.

    `load` in erlangs, `service` in seconds, and `spare`, what the promise leaves for waiting, in
    seconds divided by the variability v.
    """
    blocked = 1.0
    for k in range(1, MOST_SLOTS):
        blocked = load * blocked / (k + load * blocked)  # Erlang's B, by recursion
        if k <= load:
            continue
        waits = blocked / (1 - load / k * (1 - blocked))
        if waits * exp(-(k - load) * spare / service) <= late:
            return k
    return MOST_SLOTS


def bucket_need(work: float, cost: float, promise: Promise) -> float:
    """Return the fewest cores whose bucket is seldom empty, for `work` = λ·c cores of load.

    (u - λc)·(u·s - c) = v·c·L·u with L = ln(ρ/ε) is a quadratic in u, solved again with the ρ that
    it gives.
    """
    seconds = promise.bucket + max(0.0, promise.response_time - promise.period)
    least = max(cost, LEAST_COST) / seconds
    if work <= 0:
        return least
    nats, cores = -log(promise.late), least
    for _ in range(3):
        half = (least + work + promise.variability * least * nats) / 2
        cores = half + sqrt(max(0.0, half * half - work * least))
        nats = max(0.0, log(work / (cores * promise.late)))
    return cores

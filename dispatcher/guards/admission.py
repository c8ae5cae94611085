"""Admission: refuse a request that cannot be answered in time while refusing is cheap.

The queue is bounded by count and by predicted wait. A prediction can be wrong, so it never blocks a
request that could start at once: that request is what corrects the prediction. Nor does it assume
that an idle model keeps its few cores: until a controller has seen the queue, it refuses only what
would be late with the most cores that may be granted.

The meaning of "in time" depends on the promise (`roma.domain.model.Sla`). For a promise with a
budget it is the response time: a later answer spends the budget and the cores, and under FIFO every
later request inherits the delay. A queue bounded by a longer deadline would then answer next to
nothing in time. So the queue is bounded by the response time and drops from its head: a request
whose turn comes too late is dropped if another one waits. For a promise on the mean, and for
low-priority requests, only the deadline counts (docs/decisions/0017).

A request far larger than the model's usual ones is refused for its own length: it would be late
itself, and would keep its slot from requests that would not be late.
"""

import math
from dataclasses import dataclass
from typing import Final

from dispatcher.state.executors import RECOVERY, Executors
from dispatcher.state.queues import ModelQueue
from roma.domain.events import Reason, soonest_tick
from roma.domain.model import Priority, Request

_LOW: Final = Priority.LOW

USUAL: Final = 5.0
"""Multiple of the model's median service time that a request may take, however long that is."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request is refused, when to retry (seconds) and the numbers behind it.

    `by_client`: the client's own deadline or request size is the only reason.
    """

    reason: Reason
    retry_after: float | None
    detail: str
    by_client: bool = False


def refusal(
    request: Request, queue: ModelQueue, executors: Executors, reaction: float
) -> Refusal | None:
    """Return why an arriving request must be refused, or None to admit it.

    `reaction` is the longest time, in seconds, in which cores follow a new load.
    """
    model = request.model
    if not executors.serve(model):
        return Refusal(Reason.NO_EXECUTABLE, RECOVERY, f"no executable of model {model} is ready")
    if request.size >= queue.sizes.upper:
        refused = _too_large(request, queue, executors)
        if refused is not None:
            return refused
    if not queue.waiting:
        return None
    waiting, bound = len(queue), queue.spec.max_waiting
    wait = executors.wait(model, waiting)
    if waiting >= bound:
        return Refusal(
            Reason.QUEUE_FULL, wait, f"{waiting} requests of model {model} wait (bound {bound})"
        )
    limit, name = request.deadline - request.arrived, "deadline"
    if queue.response_limit < limit:
        limit, name = queue.response_limit, "promise"
    response, which = wait + executors.fastest(model), ""
    is_new = request.arrived - queue.waiting_since < reaction
    if response > limit and is_new and request.priority is not _LOW:
        # No controller has seen this queue yet: what it will grant may do.
        best = executors.response_at_most_cores(model, waiting)
        if best < response:
            response, which = best, " with the most cores"
    if response <= limit:
        return None
    return Refusal(
        Reason.PREDICTED_LATE,
        response - limit,
        f"model {model}: predicted response time{which} {response:.3f} s > {name} {limit:.3f} s",
        by_client=request.strict and response <= queue.spec.sla.response_time,
    )


def needs_cores(queue: ModelQueue, executors: Executors, now: float, reaction: float) -> bool:
    """Return True if a queue that no controller has seen is too long for the present cores.

    That is, its last request would be late with them, and they may grow; or it is the first of a
    model that rests at its minimum because nobody knows what a request costs.
    """
    # What it got may be too little; its controller hardly ticks sooner.
    asked_now = now - queue.asked_at < soonest_tick(reaction)
    if asked_now or now - queue.waiting_since >= reaction:
        return False
    model = queue.spec.name
    if not executors.fastest(model) and executors.starts_slowly(model):
        return True
    if not executors.may_grow(model):
        return False
    waiting, promise = len(queue), queue.spec.sla.response_time
    return (
        executors.wait(model, waiting) + executors.fastest(model) > promise
        or executors.backlog(model, waiting) > promise
    )


@dataclass(frozen=True, slots=True)
class Hold:
    """A request that would hold its slot for `seconds`, with all cores that it can use.

    `is_measured`: requests of its size were measured; otherwise smaller ones suggest the time.
    """

    seconds: float
    is_measured: bool


def holds_too_long(request: Request, queue: ModelQueue, executors: Executors) -> Hold | None:
    """Return the predicted time of a request that is too large to be interactive, or None.

    A request is too large if it takes longer than the promise, and longer than `USUAL` requests of
    median length, on every executor for which anything is known. A request of at most `USUAL` times
    their size is never too large.
    """
    upper = queue.sizes.upper
    if not upper or request.size <= USUAL * upper:
        return None
    shortest: Hold | None = None
    for executor in executors.of(request.model):
        known = executor.large(request.model, request.size, upper)
        if known is None:
            continue
        work, usual, is_measured = known
        seconds = work / executor.spec.threads
        if work <= USUAL * usual or seconds <= queue.spec.sla.response_time:
            return None
        if shortest is None or seconds < shortest.seconds:
            shortest = Hold(seconds, is_measured)
    return shortest


def _too_large(request: Request, queue: ModelQueue, executors: Executors) -> Refusal | None:
    """Return why a request is refused because of its unusual size, or None.

    Low-priority requests run where a slot stays free for the others
    (`dispatcher.guards.low_priority`).
    """
    sizes, model, now = queue.sizes, request.model, request.arrived
    hold = holds_too_long(request, queue, executors)
    if hold is None:
        return None
    if request.priority is _LOW and executors.slots(model) > 1:
        return None
    if sizes.is_trial(hold.seconds, now, is_measured=hold.is_measured):
        for executor in executors.of(model):
            executor.forget_large(model, request.size)
        return None
    promise, upper = queue.spec.sla.response_time, sizes.upper
    fits = max((e.largest(model, promise, USUAL, upper) for e in executors.of(model)), default=0)
    return Refusal(
        Reason.TOO_LARGE,
        None,
        f"model {model}: predicted service of {request.size} bytes {hold.seconds:.3f} s > "
        f"response_time {promise:.3f} s; at most {fits} bytes fit",
        by_client=True,
    )


def too_late(
    request: Request, queue: ModelQueue, executors: Executors, now: float, grace: float
) -> tuple[Reason, str] | None:
    """Return why a waiting request is no longer run, with the numbers, or None if it may run.

    Only for requests that have waited. One that has not always runs: if even that is too slow, only
    running it shows so. A request that may still be answered before its deadline is dropped only if
    others wait, and in a queue younger than `grace` seconds only if the most cores could not answer
    it in time: they may be on their way.
    """
    service = executors.fastest(request.model)
    if now + service > request.deadline:
        deadline = request.deadline - request.arrived
        return Reason.DEADLINE, _numbers(request, now, service, f"deadline {deadline:.3f} s")
    if len(queue) == 1 or queue.response_limit == math.inf:
        return None
    # Half of all services take longer than their median: with the median as the bound, half of the
    # requests that an overloaded queue answers would be late.
    limit = request.arrived + queue.response_limit
    service, which = executors.fastest_tail(request.model), ""
    if now + service > limit and now - queue.waiting_since < grace:
        # Cores may have come already: the kernel grants them before anybody says so.
        best = executors.tail_at_most_cores(request.model)
        if best < service:
            service, which = best, " with the most cores"
    if now + service <= limit:
        return None
    bound = f"promise {queue.response_limit:.3f} s"
    return Reason.PREDICTED_LATE, _numbers(request, now, service, bound, which)


def _numbers(request: Request, now: float, service: float, bound: str, which: str = "") -> str:
    waited = now - request.arrived
    return f"waited {waited:.3f} s + predicted service{which} {service:.3f} s > {bound}"

"""Admission: a request that cannot be answered in time is refused while refusing is cheap.

The queue is bounded by count and by predicted wait. A prediction can be wrong, so it never blocks
a request that could start at once: that request is what corrects the prediction.

What "in time" is depends on the promise (`roma.domain.model.Sla`). With a budget it is the response
time: an answer after it spends the budget and the cores, and under FIFO every later request
inherits the delay, so that a queue bounded by a longer deadline answers next to nothing in time. So
the queue is bounded by the response time, and drops from its head: a request whose turn comes too
late for it makes way if another one waits. A promise on the mean, and low-priority requests, have
the deadline alone (docs/decisions/0017).

A request far larger than the model's usual ones is refused for its own length: it would be late
itself, and hold its slot from those that would not be.
"""

import math
from dataclasses import dataclass
from typing import Final

from dispatcher.state.executors import RECOVERY, Executors
from dispatcher.state.queues import ModelQueue
from roma.domain.events import Reason
from roma.domain.model import Priority, Request

_LOW: Final = Priority.LOW

USUAL: Final = 5.0
"""Services of the model's median that a request may take, however long that is."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, when to come back (seconds) and the numbers behind it.

    `by_client`: its client alone is the reason, by a deadline or a size of its own.
    """

    reason: Reason
    retry_after: float | None
    detail: str
    by_client: bool = False


def refusal(request: Request, queue: ModelQueue, executors: Executors) -> Refusal | None:
    """Return why an arriving request must be refused, or None to admit it."""
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
    response, limit = wait + executors.fastest(model), request.deadline - request.arrived
    name = "deadline"
    if queue.response_limit < limit:
        name, limit = "promise", queue.response_limit
    if response > limit:
        return Refusal(
            Reason.PREDICTED_LATE,
            response - limit,
            f"model {model}: predicted response time {response:.3f} s > {name} {limit:.3f} s",
            by_client=request.strict and response <= queue.spec.sla.response_time,
        )
    return None


@dataclass(frozen=True, slots=True)
class Hold:
    """A request that would hold its slot for `seconds`, with all cores that it can use.

    `is_measured`: others of its size did; else smaller ones suggest it.
    """

    seconds: float
    is_measured: bool


def holds_too_long(request: Request, queue: ModelQueue, executors: Executors) -> Hold | None:
    """Return how long a request is predicted to run that is too large to be interactive, or None.

    It takes longer than what is promised, and than `USUAL` requests of median length, on every
    executor of which anything is known; one of no more than `USUAL` times their size never does.
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
    """Return why a request of unusual size is refused for it, or None.

    Low priority runs where a slot stays free for the others (`dispatcher.guards.low_priority`).
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
    request: Request, queue: ModelQueue, executors: Executors, now: float
) -> tuple[Reason, str] | None:
    """Return why a waiting request does not run any more, with the numbers, or None if it does.

    To be asked of requests that have waited: one that has not always runs, for if even that is too
    slow, only running it shows so. One that may still be answered before its deadline makes way
    only for others that wait.
    """
    service = executors.fastest(request.model)
    if now + service > request.deadline:
        deadline = request.deadline - request.arrived
        return Reason.DEADLINE, _numbers(request, now, service, f"deadline {deadline:.3f} s")
    if len(queue) == 1 or queue.response_limit == math.inf:
        return None
    # Half of all services take longer than their median: by that measure half of those that an
    # overloaded queue answers would be late.
    service = executors.fastest_tail(request.model)
    if now + service <= request.arrived + queue.response_limit:
        return None
    return (
        Reason.PREDICTED_LATE,
        _numbers(request, now, service, f"promise {queue.response_limit:.3f} s"),
    )


def _numbers(request: Request, now: float, service: float, bound: str) -> str:
    waited = now - request.arrived
    return f"waited {waited:.3f} s + predicted service {service:.3f} s > {bound}"

"""Admission: a request that cannot be answered in time is refused while refusing is cheap.

The queue is bounded by count and by predicted wait. A prediction can be wrong, so it never blocks
a request that could start at once: that request is what corrects the prediction.

What "in time" is depends on the promise (`roma.model.Sla`). With a budget it is the response time:
an answer after it spends the budget and the cores, and under FIFO every later request inherits the
delay, so that a queue bounded by a longer deadline answers next to nothing in time. So the queue is
bounded by the response time, and drops from its head: a request whose turn comes too late for it
makes way if another one waits. A promise on the mean, and low-priority requests, have the
deadline alone (docs/decisions/0017).

A request far larger than the model's usual ones is refused for its own length: it would be late
itself, and hold its slot from those that would not be.
"""

import math
from dataclasses import dataclass
from typing import Final

from dispatcher.executors import RECOVERY, Executors
from dispatcher.queues import ModelQueue
from roma.events import Reason
from roma.model import Priority, Request

_BATCH: Final = Priority.BATCH

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
    if not queue.sizes.lower <= request.size < queue.sizes.upper:
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


def holds_too_long(request: Request, queue: ModelQueue, executors: Executors) -> float:
    """Return the predicted seconds of a request that is too large to be interactive, or 0.

    It takes longer than what is promised, and than `USUAL` requests of median length; one of no
    more than `USUAL` times their size never does.
    """
    model, upper = request.model, queue.sizes.upper
    if not upper or request.size <= USUAL * upper:
        return 0.0
    predicted = executors.fastest_of(model, request.size, upper)
    longest = max(USUAL * executors.fastest(model), queue.spec.sla.response_time)
    return predicted if predicted > longest else 0.0


def largest(queue: ModelQueue, executors: Executors) -> int:
    """Return the size in bytes up to which a request is not refused for it; 0 if unknown."""
    model, upper = queue.spec.name, queue.sizes.upper
    longest = max(USUAL * executors.fastest(model), queue.spec.sla.response_time)
    at_least = int(USUAL * upper)
    return max((e.largest(model, longest, at_least, upper) for e in executors.of(model)), default=0)


def _too_large(request: Request, queue: ModelQueue, executors: Executors) -> Refusal | None:
    """Return why a request of unusual size is refused for it, or None; takes note of what is not.

    Low priority runs where a slot stays free for the others (`dispatcher.slack`).
    """
    sizes, model, now = queue.sizes, request.model, request.arrived
    predicted = holds_too_long(request, queue, executors)
    if request.priority is _BATCH:
        if not predicted or executors.slots(model) > 1:
            return None
    elif not predicted:
        sizes.note(request.size, queue.arrivals, now)
        return None
    elif sizes.is_trial(predicted, now):
        sizes.note(request.size, queue.arrivals, now)
        for executor in executors.of(model):
            executor.forget_large(model, request.size)
        return None
    else:
        sizes.skip()
    return Refusal(
        Reason.TOO_LARGE,
        None,
        f"model {model}: predicted service of {request.size} bytes {predicted:.3f} s > "
        f"response_time {queue.spec.sla.response_time:.3f} s; at most "
        f"{largest(queue, executors)} bytes fit",
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

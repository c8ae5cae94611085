"""Admission: a request that cannot be answered in time is refused while refusing is cheap.

The queue is bounded by count and by predicted wait. A prediction can be wrong, so it never blocks
a request that could start at once: that request is what corrects the prediction.
"""

from dataclasses import dataclass

from dispatcher.executors import RECOVERY, Executors
from dispatcher.queues import ModelQueue
from roma.events import Reason
from roma.model import Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, when to come back (seconds) and the numbers behind it."""

    reason: Reason
    retry_after: float
    detail: str


def refusal(request: Request, queue: ModelQueue, executors: Executors) -> Refusal | None:
    """Return why an arriving request must be refused, or None to admit it."""
    model = request.model
    if not executors.serve(model):
        return Refusal(Reason.NO_EXECUTABLE, RECOVERY, f"no executable of model {model} is ready")
    if not queue.waiting:
        return None
    waiting, bound = len(queue), queue.spec.max_waiting
    wait = executors.wait(model, waiting)
    if waiting >= bound:
        return Refusal(
            Reason.QUEUE_FULL, wait, f"{waiting} requests of model {model} wait (bound {bound})"
        )
    response, limit = wait + executors.fastest(model), request.deadline - request.arrived
    if response > limit:
        return Refusal(
            Reason.PREDICTED_LATE,
            response - limit,
            f"model {model}: predicted response time {response:.3f} s > deadline {limit:.3f} s",
        )
    return None


def too_late(request: Request, executors: Executors, now: float) -> str | None:
    """Return the numbers by which a waiting request misses its deadline, or None if it can run.

    To be asked of requests that have waited: one that has not always runs, for if even that is too
    slow, only running it shows so.
    """
    service = executors.fastest(request.model)
    if now + service <= request.deadline:
        return None
    return (
        f"waited {now - request.arrived:.3f} s + predicted service {service:.3f} s > "
        f"deadline {request.deadline - request.arrived:.3f} s"
    )

"""The core's record of one live request, and the accounting of its end."""

from typing import Final

from dispatcher.state.execution import Execution
from dispatcher.state.lifecycle import RequestState
from dispatcher.state.queues import ModelQueue
from dispatcher.state.utility import soft_deadline, value
from roma.domain.events import Result
from roma.domain.model import Device, Request


class Ticket:
    """A live request: waiting, or running in `execution`; `runs` counts its executions so far."""

    __slots__ = ("execution", "request", "runs", "state")

    def __init__(self, request: Request, state: RequestState) -> None:
        self.request = request
        self.state = state
        self.runs = 0
        self.execution: Execution | None = None


_TIMEOUT: Final = Result.TIMEOUT
_FAILURE: Final = Result.FAILURE
_ERROR: Final = Result.ERROR  # reading a member of an Enum costs 70 ns in Python 3.11
_INVALID: Final = Result.INVALID
_GPU: Final = Device.GPU


def is_error(result: Result) -> bool:
    """Return True if an execution failed; an input that was refused is an answer."""
    return result is _ERROR or result is _FAILURE or result is _TIMEOUT


def count(
    queue: ModelQueue,
    request: Request,
    execution: Execution,
    result: Result,
    *,
    device: Device,
    now: float,
) -> None:
    """Count an ended execution; only real answers measure the model's speed."""
    if is_error(result):
        queue.failed += 1
        return
    durations = queue.gpu if device is _GPU else queue.cpu
    durations.answered += 1
    if result is _INVALID:
        queue.invalid += 1
        return
    response = now - request.arrived
    queue.response.add(response, now)
    queue.late += response > queue.spec.sla.response_time
    if queue.accuracy:
        soft = soft_deadline(request, queue.spec)
        worth = value(queue.utility, now, soft, request.deadline)
        queue.answers[execution.variant] += 1
        queue.quality += queue.accuracy[execution.variant] * worth
    durations.add(request.arrived, execution.started, now)

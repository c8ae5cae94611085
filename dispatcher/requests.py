"""Live requests: admitted, waiting, running, and ended exactly once.

Every change is reported to the policies. What the driver must do about it collects in `commands`.
"""

from heapq import heappop, heappush
from typing import Final

from dispatcher.guards.admission import needs_cores, refusal
from dispatcher.policies import Policies
from dispatcher.state.device_state import DeviceState
from dispatcher.state.execution import Execution
from dispatcher.state.executors import Executors
from dispatcher.state.lifecycle import REQUEST, RequestState, RequestStep
from dispatcher.state.partial import PartialExecutions
from dispatcher.state.queues import ModelQueue, Queues
from dispatcher.state.retry_budget import REQUESTS_PER_RETRY
from dispatcher.state.tickets import Ticket, count, is_error
from roma.domain.events import Command, CoresNeeded, Fail, Reason, Reject, Result
from roma.domain.lifecycle import Step
from roma.domain.model import Device, Priority, Request

# Reading a member of an Enum costs 70 ns in Python 3.11, and every request makes several steps.
_QUEUED: Final = REQUEST[RequestState.NEW, RequestStep.ADMIT]
_RUN: Final = REQUEST.step(RequestStep.RUN)
_RETURN: Final = REQUEST.step(RequestStep.RETURN)
_ANSWER: Final = REQUEST.step(RequestStep.ANSWER)
_FAIL: Final = REQUEST.step(RequestStep.FAIL)
_CANCEL: Final = REQUEST.step(RequestStep.CANCEL)
_REJECT: Final = REQUEST.step(RequestStep.REJECT)
_DEADLINE: Final = Reason.DEADLINE
_INTERACTIVE: Final = Priority.INTERACTIVE


class Requests:
    """The live requests by id, with their deadlines."""

    def __init__(
        self,
        queues: Queues,
        executors: Executors,
        policies: Policies,
        partial: PartialExecutions,
        reaction: float,
    ) -> None:
        self._queues = queues
        self._executors = executors
        self._policies = policies
        self.partial = partial
        self._reaction = reaction
        self.live: dict[int, Ticket] = {}
        self.deadlines: list[tuple[float, int]] = []
        """Deadline and request, a heap; entries of requests that have ended are skipped."""
        self.commands: list[Command] = []

    def admit(self, request: Request, now: float) -> None:
        """Queue a request, or refuse it."""
        queue = self._queues.of(request)
        queue.arrivals += 1
        refused = refusal(request, queue, self._executors, self._reaction)
        if refused is not None:
            queue.rejected[refused.reason] += 1
            queue.rejected_by_client += refused.by_client
            command = Reject(request.id, refused.reason, refused.retry_after, refused.detail)
            queue.refusals.append((now, command))
            self.commands.append(command)
            return
        self.live[request.id] = Ticket(request, _QUEUED)
        queue.push(request)
        heappush(self.deadlines, (request.deadline, request.id))
        if request.priority is _INTERACTIVE and needs_cores(
            queue, self._executors, now, self._reaction
        ):
            queue.asked_at = now
            self.commands.append(CoresNeeded(request.model))
        self._policies.on_request(request, now)
        self._policies.on_queue(queue, now)

    def next_deadline(self) -> float | None:
        """Return the first deadline that ends a request; None if there is none."""
        deadlines, live = self.deadlines, self.live
        while deadlines:
            deadline, request_id = deadlines[0]
            ticket = live.get(request_id)
            if ticket is not None and (ticket.state is _QUEUED or ticket.request.strict):
                return deadline
            heappop(deadlines)
        return None

    def expire(self, now: float) -> None:
        """Reject the requests whose deadline has passed."""
        while self.deadlines and self.deadlines[0][0] <= now:
            ticket = self.live.get(heappop(self.deadlines)[1])
            if ticket is None or not (ticket.state is _QUEUED or ticket.request.strict):
                continue
            detail = f"deadline passed after {now - ticket.request.arrived:.3f} s"
            self.reject(ticket, _DEADLINE, detail, now)

    def run(self, request: Request, execution: Execution) -> None:
        """Record that a request, taken out of its queue, runs; it may have no client any more."""
        ticket = self.live.get(request.id)
        if ticket is None:
            return
        ticket.state = _RUN[ticket.state]
        ticket.runs += 1
        ticket.execution = execution

    def finish(self, execution: Execution, result: Result, device: Device, now: float) -> None:
        """End the requests of an execution, and count them."""
        step = _FAIL if is_error(result) else _ANSWER
        for request in execution.requests:
            ticket = self.live.get(request.id)
            if ticket is not None:  # otherwise it was cancelled in the meantime
                self._end(ticket, step)
                own = self._queues.of(request)
                count(own, request, execution, result, device=device, now=now)

    def keep(self, execution: Execution, device: DeviceState, now: float) -> None:
        """Let the requests of a segment that is not the last wait for the next one."""
        waited_for = {r.id for r in execution.requests if r.id in self.live}
        self.partial.keep(execution, device, waited_for, self.commands)
        self.resume(execution, now)

    def repeat(self, execution: Execution, unreachable: str, now: float) -> None:
        """Queue the requests of an execution that never ran once more, within the retry budget."""
        for request in reversed(execution.requests):
            ticket = self.live.get(request.id)
            if ticket is None:
                continue
            queue = self._queues.of(request)
            if ticket.runs > 1:
                self._fail(ticket, unreachable)
            elif not queue.retries.take(queue.arrivals):
                spent = f"no repetition is left (1 in {REQUESTS_PER_RETRY} requests)"
                self._fail(ticket, f"{unreachable}, {spent}")
            else:
                self._put_back(ticket, queue, now)

    def resume(self, execution: Execution, now: float) -> None:
        """Queue once more the requests of an execution that missed its window, or of a segment."""
        for request in reversed(execution.requests):
            ticket = self.live.get(request.id)
            if ticket is not None:
                ticket.runs -= 1  # it has no end yet, and its deadline bounds the retries
                self._put_back(ticket, self._queues.of(request), now)

    def _put_back(self, ticket: Ticket, queue: ModelQueue, now: float) -> None:
        """Put a request without an end back into the queue, in its old position."""
        request = ticket.request
        ticket.state = _RETURN[ticket.state]
        queue.put_back(request)
        heappush(self.deadlines, (request.deadline, request.id))
        self._policies.on_request(request, now)

    def cancel(self, request_id: int, now: float) -> None:
        """End a request whose client has gone."""
        ticket = self.live.get(request_id)
        if ticket is None:
            return
        was_waiting = ticket.state is _QUEUED
        queue = self._queues.of(ticket.request)
        queue.cancelled += 1
        queue.cancelled_late += self._is_late(ticket, queue, now)
        self._end(ticket, _CANCEL)
        if was_waiting:
            queue.remove(request_id)
            self._policies.on_queue(queue, now)
        # A running request keeps its slot until its executable has ended it: few model servers stop
        # when a connection closes, and none reports that it has.

    def fail(self, execution: Execution, detail: str) -> None:
        """Fail the requests of an execution that was given up."""
        for request in execution.requests:
            ticket = self.live.get(request.id)
            if ticket is not None:
                self._fail(ticket, detail)

    def _fail(self, ticket: Ticket, detail: str) -> None:
        self._end(ticket, _FAIL)
        self._queues.of(ticket.request).failed += 1
        self.commands.append(Fail(ticket.request.id, detail))

    def reject(self, ticket: Ticket, reason: Reason, detail: str, now: float) -> None:
        """Reject an admitted request."""
        queue = self._queues.of(ticket.request)
        was_waiting = ticket.state is _QUEUED
        if reason is _DEADLINE and ticket.request.strict:
            queue.rejected_by_client += not self._is_late(ticket, queue, now)
        self._end(ticket, _REJECT)
        if was_waiting:
            queue.remove(ticket.request.id)
        queue.rejected[reason] += 1
        wait = self._executors.wait(queue.spec.name, len(queue))
        command = Reject(ticket.request.id, reason, wait, detail)
        queue.refusals.append((now, command))
        self.commands.append(command)
        self._policies.on_queue(queue, now)

    def reject_all(self, model: str, now: float) -> None:
        """Reject the waiting requests of a model that no executable serves."""
        detail = f"no executable of model {model} is left"
        for queue in (self._queues.by_model[model], self._queues.low_priority.get(model)):
            while queue is not None and (head := queue.head) is not None:
                self.reject(self.live[head.id], Reason.NO_EXECUTABLE, detail, now)

    def _is_late(self, ticket: Ticket, queue: ModelQueue, now: float) -> bool:
        """Return True if a live request is predicted to miss its promise."""
        request, execution, left = ticket.request, ticket.execution, 0.0
        if ticket.state is _QUEUED:
            left = self._executors.fastest(request.model)
        elif execution is not None:
            expected = self._executors[execution.executor].expected(execution.variant) or 0.0
            left = max(0.0, execution.started + expected - now)
        return now + left - request.arrived > queue.spec.sla.response_time

    def _end(self, ticket: Ticket, step: Step[RequestState, RequestStep]) -> None:
        ticket.state = step[ticket.state]
        del self.live[ticket.request.id]
        if self.partial.by_request:
            self.partial.leave(ticket.request.id, self.commands)

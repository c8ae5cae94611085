"""The dispatcher core: events in, commands out; no clock, no socket, no task.

`handle(event, now=…)` updates the state, asks the schedulers what to run next and where, and
returns the commands that carry it out. `next_wakeup()` says when it wants a `Woken` event. `now`
never decreases. Every admitted request ends exactly once: answered, failed, rejected or cancelled.
"""

import math
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, assert_never

from dispatcher.guards.admission import USUAL, holds_too_long, refusal, too_late
from dispatcher.guards.low_priority import RECHECK_INTERVAL, executor_with_headroom
from dispatcher.guards.outlier_ejection import Ejections
from dispatcher.policies import Policies
from dispatcher.schedulers.base import (
    Batch,
    DropChoice,
    LoadChoice,
    PolicyOptions,
    PolicyView,
    RunChoice,
    Scheduler,
    UnloadChoice,
    WaitUntil,
)
from dispatcher.state.device_state import DeviceState
from dispatcher.state.executors import Execution, Executor, Executors
from dispatcher.state.lifecycle import (
    REQUEST,
    ExecutorState,
    ExecutorStep,
    RequestState,
    RequestStep,
)
from dispatcher.state.queues import ModelQueue
from dispatcher.state.retry_budget import REQUESTS_PER_RETRY
from dispatcher.state.tickets import Ticket, count
from dispatcher.state.utility import UTILITIES
from roma.domain.actions import Capabilities
from roma.domain.errors import InvalidTransition
from roma.domain.events import (
    Abort,
    Command,
    CoresApplied,
    Event,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorEvent,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    ExecutorSuspected,
    Fail,
    LoadEnded,
    LoadModel,
    ModelAdded,
    ModelRemoved,
    Reason,
    Reject,
    RequestArrived,
    RequestCancelled,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.lifecycle import Step
from roma.domain.model import ExecutorSpec, ModelSpec, Priority, Request

# Reading a member of an Enum costs 70 ns in Python 3.11, and every request makes several steps.
_QUEUED: Final = REQUEST[RequestState.NEW, RequestStep.ADMIT]
_RUN: Final = REQUEST.step(RequestStep.RUN)
_RETURN: Final = REQUEST.step(RequestStep.RETURN)
_ANSWER: Final = REQUEST.step(RequestStep.ANSWER)
_FAIL: Final = REQUEST.step(RequestStep.FAIL)
_CANCEL: Final = REQUEST.step(RequestStep.CANCEL)
_REJECT: Final = REQUEST.step(RequestStep.REJECT)
_OK: Final = Result.OK
_FAILURE: Final = Result.FAILURE
_ERROR: Final = Result.ERROR
_TIMEOUT: Final = Result.TIMEOUT
_INTERACTIVE: Final = Priority.INTERACTIVE
_DEADLINE: Final = Reason.DEADLINE

STORY_LENGTH: Final = 64
"""Number of events that an `InvalidTransition` can report."""


class Dispatcher:
    """Queues, executors and schedulers behind one function."""

    def __init__(
        self,
        models: Iterable[ModelSpec],
        *,
        gpu: type[Scheduler],
        cpu: type[Scheduler],
        options: PolicyOptions | None = None,
        window: float = 1.0,
    ) -> None:
        self._window = window
        options = options or PolicyOptions()
        self._utility = UTILITIES[options.quality.utility]
        self.queues = {spec.name: self._new_queue(spec) for spec in models}
        self.low_priority: dict[str, ModelQueue] = {}
        """Queues of low-priority requests, counted separately; only of models that received any."""
        self.executors = Executors()
        state = PolicyView(self.queues, self.executors, self.low_priority)
        self.policies = Policies(state, options, gpu=gpu, cpu=cpu)
        self._loads: dict[int, tuple[str, str]] = {}
        """Executor and model by the number of each LOAD that has not ended."""
        self._tickets: dict[int, Ticket] = {}
        self._executions: dict[int, Execution] = {}
        self._next_execution = 1
        self._deadlines: list[tuple[float, int]] = []
        self._wait_until: float | None = None
        self._ejections = Ejections(self.executors)
        self._story: deque[tuple[float, Event]] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: Event, *, now: float) -> list[Command]:
        """Take one event; return the commands to carry out now, in order."""
        self._story.append((now, event))
        commands: list[Command] = []
        try:
            self._observe(event, now, commands)
            if self._deadlines and self._deadlines[0][0] <= now:
                self._expire(now, commands)
            if self._ejections.ends and self._ejections.ends[0][0] <= now:
                for executor in self._ejections.end(now):
                    self.policies.on_executor(executor, now)
            if self._ejections.suspects:
                while (compared := self._ejections.comparison(self.queues)) is not None:
                    self._run(compared, self.queues[compared.model], now, commands)
            self._dispatch(now, commands)
        except InvalidTransition as error:
            error.add_note("story: " + "; ".join(f"{t:.6f} {e}" for t, e in self._story))
            raise
        return commands

    def next_wakeup(self) -> float | None:
        """Return when `Woken` should be handled, or None if nothing is due without an event."""
        deadlines, tickets, wakeup = self._deadlines, self._tickets, self._wait_until
        if self._ejections.ends:
            ends = self._ejections.ends[0][0]
            wakeup = ends if wakeup is None else min(ends, wakeup)
        while deadlines:
            deadline, request_id = deadlines[0]
            ticket = tickets.get(request_id)
            if ticket is not None and (ticket.state is _QUEUED or ticket.request.strict):
                return deadline if wakeup is None else min(deadline, wakeup)
            heappop(deadlines)
        return wakeup

    def refusal(self, executor: str, offer: Capabilities) -> str | None:
        """Return why a planned device with these capabilities cannot be used, or None.

        Call it before the device's `ExecutorReady`.
        """
        return self.policies.refusal(executor, offer)

    def running(self) -> Iterable[Execution]:
        """Return the running executions, oldest first; each holds a slot, awaited or not."""
        return self._executions.values()

    def waits_for(self, request: int) -> bool:
        """Return True if a client waits for a request's answer."""
        return request in self._tickets

    @property
    def live(self) -> int:
        """Number of requests that are waiting or running."""
        return len(self._tickets)

    # Observations

    def _observe(self, event: Event, now: float, commands: list[Command]) -> None:
        match event:
            case RequestArrived():
                self._on_arrival(event.request, now, commands)
            case ExecutionEnded():
                self._on_ended(event, now)
            case RequestCancelled(request_id):
                self._on_cancelled(request_id, now)
            case ExecutionMissed(execution):
                self._on_missed(execution, now)
            case LoadEnded():
                self._on_load_ended(event, now)
            case ExecutionUnreachable(execution, gone):
                self._on_unreachable(execution, gone, now, commands)
            case Woken():
                pass
            case ModelAdded(spec):
                self.queues[spec.name] = self._new_queue(spec)
                self.policies.rebuild(now)
            case ModelRemoved(model):
                self._remove_model(self.queues[model], now, commands)
            case _:
                self._observe_executor(event, now, commands)

    def _observe_executor(self, event: ExecutorEvent, now: float, commands: list[Command]) -> None:
        match event:
            case CoresApplied(name, cores, part):
                self.executors[name].resize(cores, now, part)
                self.policies.on_executor(self.executors[name], now)
            case ExecutorAdded(spec):
                self._add_executor(spec, now)
            case ExecutorReady(name, offer):
                self._on_ready(self.executors[name], offer, now)
            case ExecutorSuspected(name):
                self._on_suspected(self.executors[name], now)
            case ExecutorLost(name):
                self._lose(self.executors[name], now, commands)
            case ExecutorRemoved(name):
                self._remove_executor(self.executors[name], now, commands)
            case _:
                assert_never(event)

    def _on_arrival(self, request: Request, now: float, commands: list[Command]) -> None:
        queue = self._queue(request)
        queue.arrivals += 1
        refused = refusal(request, queue, self.executors)
        if refused is not None:
            queue.rejected[refused.reason] += 1
            queue.rejected_by_client += refused.by_client
            command = Reject(request.id, refused.reason, refused.retry_after, refused.detail)
            queue.refusals.append((now, command))
            commands.append(command)
            return
        self._tickets[request.id] = Ticket(request, _QUEUED)
        queue.push(request)
        heappush(self._deadlines, (request.deadline, request.id))
        self.policies.on_request(request, now)
        self.policies.on_queue(queue, now)

    def _on_ended(self, ended: ExecutionEnded, now: float) -> None:
        execution, result = self._executions.pop(ended.execution, None), ended.result
        if execution is None:
            return  # given up when its executor was lost
        executor, queue = self.executors[execution.executor], self.queues[execution.model]
        executor.finish(execution, now)
        if executor.planned is not None:
            measured = ended.duration if result is _OK else None
            executor.planned.end(execution.id, execution.variant, execution.size, now, measured)
        self._learn(execution, executor, queue, result, now)
        is_error = result is _ERROR or result is _FAILURE or result is _TIMEOUT
        if not is_error:
            executor.completed += 1
        if is_error or executor.errors or executor.probing or executor.fault_share:
            self._ejections.on_ended(executor, execution.model, result, now)
        step, device = _FAIL if is_error else _ANSWER, executor.spec.device
        for request in execution.requests:
            ticket = self._tickets.get(request.id)
            if ticket is not None:  # otherwise it was cancelled in the meantime
                self._end(ticket, step)
                own = self._queue(request)
                count(own, request, execution, result, device=device, now=now)
        self.policies.on_queue(queue, now)
        self.policies.on_executor(executor, now)

    def _learn(
        self,
        execution: Execution,
        executor: Executor,
        queue: ModelQueue,
        result: Result,
        now: float,
    ) -> None:
        """Learn from an execution how long requests of its model and of its size take."""
        request, sizes = execution.requests[0], queue.sizes
        if request.size >= sizes.upper > 0:
            is_bound = result is not _OK  # it may have ended early
            executor.record_large(execution, request.size, sizes.upper, now, is_bound=is_bound)
        if result is _OK:
            if sizes.lower <= request.size < sizes.upper:
                sizes.usual += 1
            elif request.priority is _INTERACTIVE:
                self._note_size(request, queue, now)
        if sizes.upper and request.size > USUAL * sizes.upper:
            return  # it says nothing about usual requests
        if result is _OK:
            executor.record(execution, now)
        elif result is _TIMEOUT:
            executor.record_at_least(execution, now)

    def _note_size(self, request: Request, queue: ModelQueue, now: float) -> None:
        """Count a request of unusual size; keep what is known of the sizes that were usual."""
        sizes, model = queue.sizes, request.model
        usual = (sizes.lower + sizes.upper) // 2
        if sizes.note(request.size, now) and usual:
            for executor in self.executors.of(model):
                executor.keep_large(model, usual)

    def _on_cancelled(self, request_id: int, now: float) -> None:
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return
        was_waiting = ticket.state is RequestState.QUEUED
        queue = self._queue(ticket.request)
        queue.cancelled += 1
        queue.cancelled_late += self._is_late(ticket, queue, now)
        self._end(ticket, _CANCEL)
        if was_waiting:
            queue.remove(request_id)
            self.policies.on_queue(queue, now)
        # A running request keeps its slot until its executable has ended it: few model servers stop
        # when a connection closes, and none reports that it has.

    def _is_late(self, ticket: Ticket, queue: ModelQueue, now: float) -> bool:
        """Return True if a live request is predicted to miss its promise."""
        request, left = ticket.request, 0.0
        if ticket.state is _QUEUED:
            left = self.executors.fastest(request.model)
        elif ticket.execution in self._executions:
            execution = self._executions[ticket.execution]
            expected = self.executors[execution.executor].expected(execution.model) or 0.0
            left = max(0.0, execution.started + expected - now)
        return now + left - request.arrived > queue.spec.sla.response_time

    def _add_executor(self, spec: ExecutorSpec, now: float) -> None:
        unknown = set(spec.models) - set(self.queues)
        assert not unknown, f"executor {spec.name} names unknown models {sorted(unknown)}"
        self.executors.add(spec)
        self.policies.attach(now)

    def _remove_executor(self, executor: Executor, now: float, commands: list[Command]) -> None:
        if executor.state is not ExecutorState.LOST:
            self._lose(executor, now, commands)
        self.executors.remove(executor.spec.name)
        self.policies.attach(now)

    def _remove_model(self, queue: ModelQueue, now: float, commands: list[Command]) -> None:
        model = queue.spec.name
        for executor in [e for e in self.executors if e.spec.models == (model,)]:
            self._remove_executor(executor, now, commands)
        for execution in [e for e in self._executions.values() if e.model == model]:
            self.executors[execution.executor].finish(execution, now)
            self._give_up(execution, f"model {model} was removed", commands)
        self._reject_all(model, now, commands)
        del self.queues[model]
        self.low_priority.pop(model, None)
        self.policies.rebuild(now)

    def _on_ready(self, executor: Executor, offer: Capabilities | None, now: float) -> None:
        if executor.suspected:
            executor.suspected = False
        else:
            executor.step(ExecutorStep.READY)
            if executor.spec.is_planned:
                assert offer is not None, f"planned executor {executor.spec.name} without offer"
                executor.planned = DeviceState(offer)
        self.policies.on_executor(executor, now)

    def _on_suspected(self, executor: Executor, now: float) -> None:
        # Without this a failing executable would be free again after each request that it breaks,
        # and would drain the whole queue before its loss is detected.
        executor.suspected = executor.live
        self.policies.on_executor(executor, now)

    def _on_unreachable(
        self, execution_id: int, gone: bool, now: float, commands: list[Command]
    ) -> None:
        execution = self._executions.pop(execution_id, None)
        if execution is None:
            return
        executor, queue = self.executors[execution.executor], self.queues[execution.model]
        self._take_back(execution, executor, now)
        for request in reversed(execution.requests):
            ticket = self._tickets.get(request.id)
            if ticket is None:
                continue
            own = self._queue(request)
            unreachable = f"executable {executor.spec.name} cannot be reached"
            if ticket.runs > 1:
                self._fail(ticket, unreachable, commands)
                continue
            if not own.retries.take(own.arrivals):
                spent = f"no repetition is left (1 in {REQUESTS_PER_RETRY} requests)"
                self._fail(ticket, f"{unreachable}, {spent}", commands)
                continue
            self._return(ticket, own, now)
        self.policies.on_queue(queue, now)
        if gone:  # an executable that refuses a connection is down for everyone
            self._lose(executor, now, commands)
        else:  # executions on its other connections may be fine
            self._on_suspected(executor, now)

    def _on_missed(self, execution_id: int, now: float) -> None:
        execution = self._executions.pop(execution_id, None)
        if execution is None:
            return
        executor = self.executors[execution.executor]
        self._take_back(execution, executor, now)
        for request in reversed(execution.requests):
            ticket = self._tickets.get(request.id)
            if ticket is not None:
                ticket.runs -= 1  # it never ran, and its deadline bounds the retries
                self._return(ticket, self._queue(request), now)
        self.policies.on_queue(self.queues[execution.model], now)
        self.policies.on_executor(executor, now)

    def _take_back(self, execution: Execution, executor: Executor, now: float) -> None:
        """Remove an execution that never ran from its executor's state."""
        executor.finish(execution, now)
        if executor.planned is not None:
            executor.planned.end(execution.id, execution.variant, execution.size, now, None)

    def _return(self, ticket: Ticket, queue: ModelQueue, now: float) -> None:
        """Put a request that never ran back into the queue, in its old position."""
        request = ticket.request
        ticket.state = _RETURN[ticket.state]
        queue.put_back(request)
        heappush(self._deadlines, (request.deadline, request.id))
        self.policies.on_request(request, now)

    def _on_load_ended(self, event: LoadEnded, now: float) -> None:
        name, model = self._loads.pop(event.load, ("", ""))
        if name not in self.executors:
            return  # its executor was lost in the meantime
        executor = self.executors[name]
        assert executor.planned is not None
        executor.planned.end_load(event.load, model, event, now)
        self.policies.on_memory(executor, model, now)

    def _lose(self, executor: Executor, now: float, commands: list[Command]) -> None:
        executor.step(ExecutorStep.LOSE)
        executor.suspected = False
        if executor.spec.is_planned:
            name = executor.spec.name
            self._loads = {n: what for n, what in self._loads.items() if what[0] != name}
        for execution in executor.running.values():
            self._give_up(execution, f"executable {executor.spec.name} was lost", commands)
        executor.abandon(now)
        for needed in (executor, *self._ejections.on_lost()):
            self.policies.on_executor(needed, now)
        for model in executor.spec.models:
            # A GPU may still hold a model that was removed.
            if model in self.queues and not self.executors.serve(model):
                self._reject_all(model, now, commands)

    def _give_up(self, execution: Execution, detail: str, commands: list[Command]) -> None:
        del self._executions[execution.id]
        commands.append(Abort(execution.id))
        for request in execution.requests:
            ticket = self._tickets.get(request.id)
            if ticket is not None:
                self._fail(ticket, detail, commands)

    # Decisions

    def _expire(self, now: float, commands: list[Command]) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heappop(self._deadlines)
            ticket = self._tickets.get(request_id)
            if ticket is None or not (ticket.state is _QUEUED or ticket.request.strict):
                continue
            detail = f"deadline passed after {now - ticket.request.arrived:.3f} s"
            self._reject(ticket, Reason.DEADLINE, detail, now, commands)

    def _dispatch(self, now: float, commands: list[Command]) -> None:
        self._wait_until = None
        for scheduler in self.policies.active:
            while True:
                choice = scheduler.choose(now)
                match choice:
                    case None:
                        break
                    case RunChoice():
                        self._run(choice, self.queues[choice.model], now, commands)
                    case Batch() | LoadChoice() | UnloadChoice():
                        self._act(choice, now, commands)
                    case DropChoice():
                        for request_id in choice.requests:
                            ticket = self._tickets[request_id]
                            self._reject(ticket, choice.reason, choice.detail, now, commands)
                    case WaitUntil():
                        self._wait_until = min(choice.time, self._wait_until or choice.time)
                        break
                    case _:
                        assert_never(choice)
        if self.low_priority:
            self._run_low_priority(now, commands)

    def _run_low_priority(self, now: float, commands: list[Command]) -> None:
        """Run low-priority requests in the capacity that the policies left free."""
        for model, batch in self.low_priority.items():
            while (head := batch.head) is not None:
                is_long = (
                    head.size >= batch.sizes.upper
                    and holds_too_long(head, self.queues[model], self.executors) is not None
                )
                executor = executor_with_headroom(
                    self.queues[model], self.executors, now, is_long=is_long
                )
                if executor is None:
                    look = now + RECHECK_INTERVAL
                    self._wait_until = min(look, self._wait_until or look)
                    break
                self._run(RunChoice(executor.spec.name, model), batch, now, commands)

    def _run(
        self, choice: RunChoice, queue: ModelQueue, now: float, commands: list[Command]
    ) -> None:
        batch: list[Request] = []
        while len(batch) < choice.count:
            first = queue.youngest if choice.youngest else queue.head
            if first is None:
                break
            late = too_late(first, queue, self.executors, now) if now > first.arrived else None
            if late is not None:
                self._reject(self._tickets[first.id], late[0], late[1], now, commands)
                continue
            self._take(self._tickets[first.id], queue)
            batch.append(first)
        if batch:
            executor, requests = self.executors[choice.executor], tuple([r.id for r in batch])
            number = self._start(executor, choice.model, tuple(batch), now)
            commands.append(Execute(number, choice.executor, choice.model, requests))
            self.policies.on_queue(queue, now)
            self.policies.on_executor(executor, now)

    def _act(
        self, choice: Batch | LoadChoice | UnloadChoice, now: float, commands: list[Command]
    ) -> None:
        """Send an action to a planned device."""
        name, model = choice.executor, choice.model
        executor = self.executors[name]
        device, number = executor.planned, self._next_execution
        assert device is not None, f"{executor!r} is not a planned device"
        match choice:
            case Batch():
                tickets = [self._tickets[request] for request in choice.requests]
                for ticket in tickets:
                    self._take(ticket, self._queue(ticket.request))
                variant, size = choice.variant or model, choice.size or len(tickets)
                requests = tuple([t.request for t in tickets])
                self._start(executor, model, requests, now, variant=variant, size=size)
                device.begin(number, variant, size, now)
                window = choice.earliest, choice.latest
                commands.append(
                    Execute(
                        number, name, model, choice.requests, window, variant=variant, size=size
                    )
                )
                self.policies.on_queue(self.queues[model], now)
                self.policies.on_executor(executor, now)
                return
            case LoadChoice():
                self._next_execution += 1
                device.begin_load(number, model, now)
                self._loads[number] = name, model
                commands.append(LoadModel(number, name, model, choice.latest))
            case UnloadChoice():
                device.unload(model)
                commands.append(UnloadModel(name, model))
            case _:
                assert_never(choice)
        self.policies.on_memory(executor, model, now)

    def _take(self, ticket: Ticket, queue: ModelQueue) -> None:
        """Take a request out of its queue for the execution that starts next."""
        ticket.state = _RUN[ticket.state]
        ticket.runs += 1
        ticket.execution = self._next_execution
        queue.remove(ticket.request.id)

    def _start(
        self,
        executor: Executor,
        model: str,
        requests: tuple[Request, ...],
        now: float,
        *,
        variant: str | None = None,
        size: int = 1,
    ) -> int:
        """Start an execution; return its number."""
        number = self._next_execution
        self._next_execution += 1
        variant = model if variant is None else variant
        execution = Execution(
            number, executor.spec.name, model, requests, started=now, variant=variant, size=size
        )
        self._executions[number] = execution
        executor.start(execution)
        return number

    def _reject(
        self, ticket: Ticket, reason: Reason, detail: str, now: float, commands: list[Command]
    ) -> None:
        queue = self._queue(ticket.request)
        was_waiting = ticket.state is _QUEUED
        if reason is _DEADLINE and ticket.request.strict:
            queue.rejected_by_client += not self._is_late(ticket, queue, now)
        self._end(ticket, _REJECT)
        if was_waiting:
            queue.remove(ticket.request.id)
        queue.rejected[reason] += 1
        wait = self.executors.wait(queue.spec.name, len(queue))
        command = Reject(ticket.request.id, reason, wait, detail)
        queue.refusals.append((now, command))
        commands.append(command)
        self.policies.on_queue(queue, now)

    def _reject_all(self, model: str, now: float, commands: list[Command]) -> None:
        detail = f"no executable of model {model} is left"
        for queue in (self.queues[model], self.low_priority.get(model)):
            while queue is not None and (head := queue.head) is not None:
                ticket = self._tickets[head.id]
                self._reject(ticket, Reason.NO_EXECUTABLE, detail, now, commands)

    def _fail(self, ticket: Ticket, detail: str, commands: list[Command]) -> None:
        self._end(ticket, _FAIL)
        self._queue(ticket.request).failed += 1
        commands.append(Fail(ticket.request.id, detail))

    # Accounting

    def _new_queue(self, spec: ModelSpec) -> ModelQueue:
        return ModelQueue(spec, self._window, self._utility)

    def _queue(self, request: Request) -> ModelQueue:
        """Return the queue that a request belongs to."""
        queue = self.queues[request.model]
        if request.priority is _INTERACTIVE:
            return queue
        batch = self.low_priority.get(request.model)
        if batch is None:
            batch = self.low_priority[request.model] = self._new_queue(queue.spec)
            batch.response_limit = math.inf
            batch.sizes = queue.sizes
        return batch

    def _end(self, ticket: Ticket, step: Step[RequestState, RequestStep]) -> None:
        ticket.state = step[ticket.state]
        del self._tickets[ticket.request.id]

"""Drives the core: carries its commands to model servers and their answers back as events.

One object, no lock, no task per request: every method runs to its end inside the event loop, so the
core sees one event at a time.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, assert_never

from mypy_extensions import mypyc_attr

from dispatcher.core import Dispatcher
from dispatcher.live.auth.callers import Grant
from dispatcher.live.backends.backend_address import (
    Answer,
    BackendAddress,
    GrpcMessage,
    GrpcResponse,
)
from dispatcher.live.backends.http_connection import Attempt
from dispatcher.live.backends.verdicts import gave_up, judge, judge_grpc
from dispatcher.live.context import Context
from dispatcher.live.http.messages import Message, Response
from roma.domain.errors import (
    BackendError,
    BackendLost,
    BackendSilent,
    BackendTimeout,
    BackendTooLarge,
    BackendUnreachable,
)
from roma.domain.events import (
    Abort,
    Command,
    CoresApplied,
    CoresNeeded,
    DiscardResults,
    Event,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutionUnreachable,
    ExecutorLost,
    ExecutorReady,
    ExecutorSuspected,
    Fail,
    LoadModel,
    ModelsMissing,
    Reject,
    RequestArrived,
    RequestCancelled,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.model import ModelSpec, Priority, Request
from roma.domain.variants import RequestOptions
from roma.telemetry.logs import RateLimitedLogger

log: Final = logging.getLogger(__name__)

Outcome = Answer | Reject | Fail

_INTERACTIVE: Final = Priority.INTERACTIVE

_FAULTS: Final = (Result.ERROR, Result.FAILURE)

EARLY: Final = 0.05
"""Seconds before a client's own deadline within which a model server may have given up for it."""

MOST_MS: Final = 2**31 - 1
"""Most milliseconds that a model server is told; a gRPC deadline may be years away."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Call:
    """A client's call, until its outcome is known.

    `deadline` is the client's own, in seconds after arrival, None for the model's default. `spent`
    is the part of it, or of the model's, that had passed when the request came. `size` is the size
    of its body in bytes, uncompressed.
    """

    __slots__ = (
        "arrived",
        "context",
        "deadline",
        "executor",
        "grant",
        "id",
        "message",
        "model",
        "priority",
        "size",
        "spent",
        "terms",
    )

    def __init__(
        self,
        model: str,
        message: Message | GrpcMessage,
        *,
        deadline: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
        context: Context | None = None,
    ) -> None:
        self.id = 0
        self.model = model
        self.message = message
        self.size = len(message.body)
        self.deadline = deadline
        self.priority = priority
        self.context = context
        self.terms: RequestOptions | None = None
        self.spent = 0.0
        self.arrived = 0.0
        self.executor: str | None = None
        """The executor that it was last sent to."""
        self.grant: Grant | None = None
        """Its caller's grant, held as long as it runs, even if its client disconnects."""

    def on_outcome(self, outcome: Outcome) -> None:
        """Take the outcome; called exactly once, and never after `Driver.cancel`."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Give up: the client is gone."""
        raise NotImplementedError


class DeviceCommands(Protocol):
    """Carries out the commands for a planned executor; it feeds the events itself."""

    def execute(self, command: Execute, calls: Sequence[Call | None]) -> None:
        """Run the calls as one batch; those that are None were cancelled meanwhile."""

    def load(self, command: LoadModel) -> None:
        """Copy a model's weights to the device."""

    def unload(self, command: UnloadModel) -> None:
        """Free a model's memory."""

    def discard(self, command: DiscardResults) -> None:
        """Forget what a segment left."""


class Driver:
    """The live side of one dispatcher core.

    `clock` is monotonic, in seconds. It is not the event loop's: uvloop's has a resolution of a
    millisecond, in which a fast model would seem to answer in no time.
    """

    def __init__(
        self,
        core: Dispatcher,
        endpoints: Mapping[str, BackendAddress],
        *,
        backend_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.clock = clock
        self._endpoints = endpoints
        self.devices: dict[str, DeviceCommands] = {}
        """Planned devices by executor; where there are any, there are no `endpoints`."""
        self.on_need: Callable[[str], None] = lambda _: None
        """Called with a worker whose cores a queue has outgrown."""
        self._timeout = backend_timeout
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._calls: dict[int, Call] = {}
        self._commands: deque[Command] = deque()
        self._is_carrying_out = False
        self._attempts: dict[int, tuple[Attempt, Call]] = {}
        """Requests in flight to executables, by execution."""
        self.suspects: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Events by executor: set when an answer broke off or a connection was refused."""
        self._complaints = RateLimitedLogger(log, self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def submit(self, call: Call) -> None:
        """Queue a call; the outcome may come before this returns."""
        now = call.arrived = self.clock()
        self._last_id += 1
        request_id = call.id = self._last_id
        self._calls[request_id] = call
        spec = self.core.queues[call.model].spec
        context = call.context
        if context is not None and context.trace is not None:
            context.trace.on_queued(now, sla=spec.sla.response_time)
        own = call.deadline
        terms = call.terms
        if own is None and call.priority is _INTERACTIVE and terms is None:
            request = Request(request_id, call.model, now, now + spec.deadline, size=call.size)
        else:
            request = Request(
                request_id,
                call.model,
                now,
                now + self.longest(spec, call),
                strict=own is not None,
                priority=call.priority,
                terms=terms,
                size=call.size,
            )
        try:
            self._feed(RequestArrived(request), now)
        except BaseException:  # a bug: do not keep the call and its body
            self._calls.pop(request_id, None)
            raise

    def cancel(self, call: Call) -> None:
        """Cancel a call whose client went away: its place in the queue is free.

        If it runs, its answer is read and discarded: only the answer shows when the slot is free.
        """
        if self._calls.pop(call.id, None) is not None:
            self.handle(RequestCancelled(call.id))

    def handle(self, event: Event) -> None:
        """Feed one event and carry out the core's commands."""
        self._feed(event, self.clock())

    def _feed(self, event: Event, now: float) -> None:
        commands = self.core.handle(event, now=now)
        if self._is_carrying_out:
            self._commands.extend(commands)
        elif commands or self._commands:  # the latter if an outcome raised
            # An outcome can bring the next request of its client, which re-enters here: earlier
            # commands are carried out first.
            self._is_carrying_out = True
            try:
                if len(commands) == 1 and not self._commands:  # the usual case: no queue for it
                    self._carry_out(commands[0])
                else:
                    self._commands.extend(commands)
                while self._commands:
                    self._carry_out(self._commands.popleft())
            finally:
                self._is_carrying_out = False
        wakeup = self.core.next_wakeup()
        if wakeup is not None:
            self._arm(wakeup)

    def take(self, request: int) -> Call | None:
        """Return a call whose outcome is reported in another way; None if it has one already."""
        return self._calls.pop(request, None)

    def on_ready(self, executor: str) -> None:
        """Report that an executable is loaded and reachable."""
        known = self.core.executors[executor]
        if not known.live or known.suspected:
            log.info("executable %s is ready", executor)
            self.handle(ExecutorReady(executor))
            self._check_gpus()

    def on_lost(self, executor: str, why: str) -> None:
        """Report that an executable is gone."""
        if self.core.executors[executor].live:
            log.warning("executable %s is lost: %s", executor, why)
            self.handle(ExecutorLost(executor))

    def on_unavailable(self, executor: str, why: str) -> None:
        """Report that an executable takes nothing new: it is gone, unless it computes.

        One with a single worker answers no status meanwhile, and one that shuts down refuses
        connections: what it runs goes on, for `gateway.backend_timeout` at most, and it gets
        nothing more.
        """
        known = self.core.executors[executor]
        if not known.running:
            self.on_lost(executor, why)
        elif not known.suspected:
            log.warning("executable %s gets no more requests: %s", executor, why)
            self.handle(ExecutorSuspected(executor))

    def on_missing(self, executor: str, models: Collection[str]) -> None:
        """Report which models of an executable its server does not have."""
        if self.core.executors[executor].missing != models:
            self.handle(ModelsMissing(executor, tuple(models)))
            self._check_gpus()

    def _check_gpus(self) -> None:
        """Look at once at GPUs that may lack what another one has by now."""
        for gpu in self.core.executors.gpus:
            if gpu.suspected and gpu.missing:
                self.suspects[gpu.spec.name].set()

    def on_applied(
        self, executor: str, cores: float, part: float = 1.0, cost: float | None = None
    ) -> None:
        """Report the cores that a supervisor applied; unknown executables are ignored."""
        if executor not in self.core.executors:
            return
        if not self.core.executors[executor].is_told(cores, part, cost):
            self.handle(CoresApplied(executor, cores, part, cost))

    def close(self) -> None:
        """Stop the timer."""
        self._complaints.close()
        if self._timer is not None:
            self._timer.cancel()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Execute():
                self._execute(command)
            case Reject() | Fail():
                self.resolve(command.request, command)
            case Abort(execution):
                aborted = self._attempts.pop(execution, None)
                if aborted is not None:
                    attempt, call = aborted
                    attempt.abort()
                    _give_back(call)
            case LoadModel():
                self.devices[command.executor].load(command)
            case UnloadModel():
                self.devices[command.executor].unload(command)
            case DiscardResults():
                self.devices[command.executor].discard(command)
            case CoresNeeded(model):
                for executor in self.core.executors.of(model):
                    self.on_need(executor.spec.worker)
            case _:
                assert_never(command)

    def longest(self, spec: ModelSpec, call: Call) -> float:
        """Return the longest time a call may take: the client's own, within the promise to all.

        A client must not loosen a promise for itself: others in its queue would wait for it.
        """
        limit = self._timeout if call.priority is Priority.LOW else spec.deadline
        if call.deadline is not None:
            limit = min(call.deadline, limit)
        return max(0.0, limit - call.spent)

    def _execute(self, command: Execute) -> None:
        if self.devices:
            calls = [self._calls.get(request) for request in command.requests]
            self.devices[command.executor].execute(command, calls)
            return
        # Policies of other devices run requests one by one; a batch needs its inputs joined.
        (request,) = command.requests
        call = self._calls.get(request)
        if call is None:  # cancelled between the command and now: it never runs
            self.handle(ExecutionMissed(command.execution))
            return
        call.executor = command.executor
        done = _Sent(self, command, call)
        if call.grant is not None:
            call.grant.hold()
        try:
            more = self._headers(call, command) if call.context or call.deadline else ""
            message = call.message
            if command.variant != command.model:
                message = message.for_variant(command.model, command.variant)
            attempt = self._endpoints[command.executor].send(
                message, done, timeout=self._timeout, more=more
            )
            self._attempts[command.execution] = attempt, call
        except Exception as error:  # whatever the error is, it must end in the core's state
            what = f"executable {command.executor}: cannot send"
            self._complaints.log(what, logging.ERROR, "%s", what, exc_info=True)
            failure = BackendError(f"cannot send: {error}")
            self._loop.call_soon(done, failure)

    def _headers(self, call: Call, command: Execute) -> str:
        """Return the headers that the model server gets in addition to the message."""
        lines, context = "", call.context
        if call.deadline is not None:
            left = call.arrived + call.deadline - self.clock()
            lines = f"X-Request-Timeout-Ms: {min(MOST_MS, max(1, round(left * 1000)))}\r\n"
        if context is None:
            return lines
        if context.trace is None:
            return lines + context.lines
        name = command.executor
        device = self.core.executors[name].spec.device
        address = self._endpoints[name].address(call.message)
        told = context.trace.on_executing(name, device, address, self.clock())
        return lines + context.lines_with(told)

    def _log_backend_error(self, executor: str, error: BackendError) -> None:
        label = f"executable {executor}: {type(error).__name__}"
        fields = {"executable": executor, "reason": type(error).__name__}
        self._complaints.log(
            label, logging.WARNING, "executable %s: %s", executor, error, fields=fields
        )

    def on_done(self, command: Execute, call: Call, result: Answer | BackendError) -> None:
        """Report how an execution ended, and resolve its call."""
        self._attempts.pop(command.execution, None)
        _give_back(call)
        if call.context is not None and call.context.trace is not None and call.id in self._calls:
            call.context.trace.on_executed(result, self.clock())
        if isinstance(result, Response):
            self._end(command, call, result, judge(result))
        elif isinstance(result, GrpcResponse):
            self._end(command, call, result, judge_grpc(result.code, result.message))
        elif isinstance(result, BackendUnreachable):
            self._log_backend_error(command.executor, result)
            gone = not isinstance(result, BackendSilent)
            self.handle(ExecutionUnreachable(command.execution, gone))
            if command.executor in self.core.executors:
                self.suspects[command.executor].set()
        else:
            assert isinstance(result, BackendError)
            self._log_backend_error(command.executor, result)
            # Neither shows when the model server will be done.
            is_unended = isinstance(result, BackendTimeout | BackendTooLarge)
            is_doubtful = is_unended or isinstance(result, BackendLost)
            if is_doubtful and command.executor in self.core.executors:
                self.handle(ExecutorSuspected(command.executor))
                self.suspects[command.executor].set()
            verdict = Result.TIMEOUT if is_unended else Result.ERROR
            self.handle(ExecutionEnded(command.execution, verdict))
            self.resolve(call.id, Fail(call.id, f"executable {command.executor}: {result}"))

    def _end(self, command: Execute, call: Call, answer: Answer, verdict: Result) -> None:
        if verdict in _FAULTS and call.deadline is not None and gave_up(answer):
            # A model server that kept the client's own deadline, which it was sent, is not at
            # fault. For a short deadline at most half of it is forgiven: clients choose it.
            early = min(EARLY, call.deadline / 2)
            late = self.clock() >= call.arrived + call.deadline - early
            verdict = Result.INVALID if late else verdict
        self.handle(ExecutionEnded(command.execution, verdict))
        self.resolve(call.id, answer)

    def resolve(self, request: int, outcome: Outcome) -> None:
        """Give a call its outcome, unless it was cancelled or already has one."""
        call = self._calls.get(request)
        if call is not None:
            del self._calls[request]
            call.on_outcome(outcome)

    def _arm(self, wakeup: float) -> None:
        """Keep one timer at or before the core's next wake-up; an early one does no harm."""
        if self._timer is not None:
            if self._timer_at <= wakeup:
                return
            self._timer.cancel()
        self._timer_at = wakeup
        self._timer = self._loop.call_later(max(0.0, wakeup - self.clock()), self._on_timer)

    def _on_timer(self) -> None:
        # It may come up to a millisecond early; then nothing is due and it is armed again.
        self._timer = None
        self.handle(Woken())


class _Sent:
    """A call in flight to an executable; called with the result."""

    __slots__ = ("_call", "_command", "_driver")

    def __init__(self, driver: Driver, command: Execute, call: Call) -> None:
        self._driver = driver
        self._command = command
        self._call = call

    def __call__(self, result: Answer | BackendError) -> None:
        self._driver.on_done(self._command, self._call, result)


def _give_back(call: Call) -> None:
    """Release an execution's hold on its caller's grant."""
    if call.grant is not None:
        call.grant.release()

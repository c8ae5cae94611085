"""Drives a dispatcher core in virtual time: the simulated counterpart of `dispatcher.live.driver`.

    event ─► Dispatcher.handle ─► commands ─► executors, planned devices, clients
    end of an execution, outcome of an action ─► event

A subclass sends the requests, runs executions on executors that are no planned devices, and hears
how each request ended.
"""

import math
from collections.abc import Sequence
from typing import Final, assert_never

from mypy_extensions import mypyc_attr

from dispatcher.core import Dispatcher
from roma.domain.actions import (
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Discard,
    Infer,
    Load,
    Unload,
)
from roma.domain.errors import ConfigError
from roma.domain.events import (
    Abort,
    Command,
    CoresNeeded,
    DiscardResults,
    Event,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutorAdded,
    ExecutorReady,
    Fail,
    LoadEnded,
    LoadModel,
    Reason,
    Reject,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.model import ExecutorSpec
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.devices import SimulatedDevices

_OK: Final = Result.OK  # reading a member of an Enum costs 70 ns in Python 3.11
_WAITS: Final = -math.inf


@mypyc_attr(allow_interpreted_subclasses=True)
class SimulatedDriver:
    """A dispatcher core on an agenda; with `devices`, every executor is one of these."""

    def __init__(
        self, dispatcher: Dispatcher, agenda: Agenda, devices: SimulatedDevices | None
    ) -> None:
        self.dispatcher = dispatcher
        self.agenda = agenda
        self.devices = devices
        self._running: dict[int, Execute] = {}
        self._timer_at = math.inf
        """Time of the core's next wakeup; `_WAITS` while one waits its turn."""

    # For subclasses

    def _start(self, command: Execute) -> None:
        """Begin an execution on an executor that is no planned device; its end is `_on_end`."""
        raise NotImplementedError

    def _on_answered(self, request: int, command: Execute) -> None:
        """Take the end of a request that an execution has answered."""
        raise NotImplementedError

    def _on_refused(self, request: int, reason: Reason | None) -> None:
        """Take the end of a request that was refused, or that failed: then without a reason."""
        raise NotImplementedError

    def _on_cores_needed(self, model: str) -> None:
        """Take a model's call for an early decision about its cores."""

    # Events

    def _add(self, spec: ExecutorSpec, offer: Capabilities | None) -> None:
        """Add an executor that is ready; raise ConfigError if its models do not fit."""
        if offer is not None and (why := self.dispatcher.refusal(spec.name, offer)) is not None:
            raise ConfigError(f"device {spec.name}: {why}")
        self._handle(ExecutorAdded(spec))
        self._handle(ExecutorReady(spec.name, offer))

    def _handle(self, event: Event, ended: Execute | None = None) -> None:
        """Answer the requests of an execution that has ended, and let the core handle the event."""
        if ended is not None:
            self._answer(ended)
        self._carry_out_all(event, self._decide(event))

    def _decide(self, event: Event) -> list[Command]:
        """Return the core's commands on an event."""
        return self.dispatcher.handle(event, now=self.agenda.now)

    def _on_end(self, execution: int, duration: float | None = None) -> None:
        """End an execution; `duration` as an executor measured it, in seconds."""
        command = self._running.pop(execution, None)
        if command is not None:  # else its executor was lost meanwhile
            self._handle(ExecutionEnded(execution, _OK, duration), command)

    def _on_outcome(self, outcome: ActionOutcome) -> None:
        """Take the outcome of an action of a planned device."""
        number, status = outcome.id, outcome.status
        is_ok, is_missed = status is ActionStatus.OK, status is ActionStatus.MISSED
        assert is_ok or is_missed, f"an action was wrong: {outcome}"
        if number == 0:
            return  # an UNLOAD
        took = outcome.duration if is_ok else None
        if number not in self._running:
            self._handle(LoadEnded(number, is_ok, took, is_missed))
        elif is_ok:
            self._on_end(number, took)
        else:
            del self._running[number]
            self._handle(ExecutionMissed(number))

    def _answer(self, ended: Execute) -> None:
        if ended.is_last:
            for request in ended.requests:
                self._on_answered(request, ended)

    def _on_timer(self, wakeup: float) -> None:
        if wakeup == self._timer_at:
            self._timer_at = _WAITS
            self._handle(Woken())

    # Commands

    def _carry_out_all(self, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            self._carry_out(command)
        if self._timer_at == _WAITS and isinstance(event, Woken):
            self._timer_at = math.inf
        wakeup = self.dispatcher.next_wakeup()
        if wakeup is not None and wakeup < self._timer_at:
            self._timer_at = wakeup
            self.agenda.at(wakeup, self._on_timer, wakeup)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Execute():
                self._execute(command)
            case Reject(request, reason):
                self._on_refused(request, reason)
            case Fail(request):
                self._on_refused(request, None)
            case Abort(execution):
                del self._running[execution]
            case CoresNeeded(model):
                self._on_cores_needed(model)
            case LoadModel() | UnloadModel() | DiscardResults():
                self._manage(command)
            case _:
                assert_never(command)

    def _execute(self, command: Execute) -> None:
        self._running[command.execution] = command
        if self.devices is None:
            self._start(command)
            return
        size, window = command.size, command.window
        action = Infer(command.execution, command.variant, size, *window, command.part)
        self.devices.give(command.executor, action)

    def _manage(self, command: LoadModel | UnloadModel | DiscardResults) -> None:
        """Pass on what a planned device does besides executions."""
        devices = self.devices
        assert devices is not None
        match command:
            case LoadModel(number, executor, model, latest):
                devices.give(executor, Load(number, model, self.agenda.now, latest))
            case UnloadModel(executor, model):
                devices.give(executor, Unload(0, model))
            case DiscardResults(executor, model, execution):
                devices.give(executor, Discard(0, model, execution))
            case _:
                assert_never(command)

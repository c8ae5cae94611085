"""The dispatcher core: events in, commands out; no clock, no socket, no task.

`handle(event, now=…)` updates the state, asks the schedulers what to run next and where, and
returns the commands that carry it out. `next_wakeup()` says when it wants a `Woken` event. `now`
never decreases. Every admitted request ends exactly once: answered, failed, rejected or cancelled.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, assert_never

from dispatcher.executions import Executions
from dispatcher.guards.admission import holds_too_long, too_late
from dispatcher.guards.low_priority import RECHECK_INTERVAL, executor_with_headroom
from dispatcher.guards.outlier_ejection import Ejections
from dispatcher.policies import Policies
from dispatcher.requests import Requests
from dispatcher.schedulers.base import (
    Batch,
    BatchGroup,
    DropChoice,
    LoadChoice,
    PolicyView,
    RunChoice,
    Scheduler,
    UnloadChoice,
    WaitUntil,
)
from dispatcher.state.device_state import DeviceState
from dispatcher.state.execution import Execution
from dispatcher.state.executor import Executor
from dispatcher.state.executors import Executors
from dispatcher.state.lifecycle import ExecutorState, ExecutorStep, Rotation
from dispatcher.state.partial import PartialExecutions
from dispatcher.state.queues import ModelQueue, Queues
from dispatcher.state.tickets import is_error
from dispatcher.state.utility import UTILITIES
from roma.config.policy_file import Policy
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import Capabilities
from roma.domain.errors import InvalidTransition
from roma.domain.events import (
    Command,
    CoresApplied,
    Event,
    ExecutionEnded,
    ExecutionMissed,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorEvent,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    ExecutorSuspected,
    LoadEnded,
    ModelAdded,
    ModelRemoved,
    ModelsAssigned,
    ModelsMissing,
    RequestArrived,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request

_PROBING: Final = Rotation.PROBING  # reading a member of an Enum costs 70 ns in Python 3.11
_OK: Final = Result.OK

EVENTS_KEPT: Final = 64
"""Number of events that an `InvalidTransition` can report."""


class Dispatcher:
    """Queues, executors and schedulers behind one function.

    `window` is that of the response times, `reaction` the longest time in which cores follow a new
    load (0: they never do), `grace` the age of a queue until which its requests wait for cores that
    may be on their way; all in seconds. `options` are by default those of a roma.yaml that
    names none; `learned` is the trained policy of `qos-rl`.
    """

    def __init__(
        self,
        models: Iterable[ModelSpec],
        *,
        gpu: type[Scheduler],
        cpu: type[Scheduler],
        options: SchedulingConfig | None = None,
        learned: Policy | None = None,
        window: float = 1.0,
        reaction: float = 0.0,
        grace: float = 0.0,
    ) -> None:
        options = options or SchedulingConfig()
        self._queues = Queues(models, window, UTILITIES[options.quality.utility])
        self.queues = self._queues.by_model
        self.low_priority = self._queues.low_priority
        """Queues of low-priority requests, counted separately; only of models that received any."""
        self.executors = Executors()
        partial = PartialExecutions()
        self.partial = partial.by_number
        """Executions of which a segment has ended that is not the last, by number."""
        state = PolicyView(self.queues, self.executors, self.low_priority, learned, self.partial)
        self.policies = Policies(state, options, gpu=gpu, cpu=cpu)
        self._grace = grace
        self._requests = Requests(self._queues, self.executors, self.policies, partial, reaction)
        self._executions = Executions(self._queues, self.executors, self.policies, self._requests)
        self._wait_until: float | None = None
        self._ejections = Ejections(self.executors)
        self._recent: deque[tuple[float, Event]] = deque(maxlen=EVENTS_KEPT)

    def handle(self, event: Event, *, now: float) -> list[Command]:
        """Take one event; return the commands to carry out now, in order."""
        self._recent.append((now, event))
        commands = self._requests.commands = []
        try:
            self._observe(event, now)
            deadlines = self._requests.deadlines
            if deadlines and deadlines[0][0] <= now:
                self._requests.expire(now)
            if self._ejections.ends and self._ejections.ends[0][0] <= now:
                for executor in self._ejections.end(now):
                    self.policies.on_executor(executor, now)
            if self._ejections.suspects:
                while (compared := self._ejections.comparison(self.queues)) is not None:
                    self._run(compared, self.queues[compared.model], now)
            self._dispatch(now)
        except InvalidTransition as error:
            error.add_note("last events: " + "; ".join(f"{t:.6f} {e}" for t, e in self._recent))
            raise
        return commands

    def next_wakeup(self) -> float | None:
        """Return when `Woken` should be handled, or None if nothing is due without an event."""
        wakeup, deadline = self._wait_until, self._requests.next_deadline()
        if self._ejections.ends:
            ends = self._ejections.ends[0][0]
            wakeup = ends if wakeup is None else min(ends, wakeup)
        if deadline is None or wakeup is None:
            return wakeup if deadline is None else deadline
        return min(deadline, wakeup)

    def refusal(self, executor: str, offer: Capabilities) -> str | None:
        """Return why a planned device with these capabilities cannot be used, or None.

        Call it before the device's `ExecutorReady`.
        """
        return self.policies.by_device[Device.GPU].refusal(executor, offer)

    def running(self) -> Iterable[Execution]:
        """Return the running executions, oldest first; each holds a slot, awaited or not."""
        return self._executions.running.values()

    def waits_for(self, request: int) -> bool:
        """Return True if a client waits for a request's answer."""
        return request in self._requests.live

    @property
    def live(self) -> int:
        """Number of requests that are waiting or running."""
        return len(self._requests.live)

    # Observations

    def _observe(self, event: Event, now: float) -> None:
        match event:
            case RequestArrived():
                self._requests.admit(event.request, now)
            case ExecutionEnded():
                self._on_ended(event, now)
            case RequestCancelled(request_id):
                self._requests.cancel(request_id, now)
            case ExecutionMissed(execution):
                self._on_missed(execution, now)
            case LoadEnded():
                self._executions.end_load(event, now)
            case ExecutionUnreachable(execution, gone):
                self._on_unreachable(execution, gone, now)
            case Woken():
                pass
            case ModelAdded(spec):
                self._queues.add(spec)
                self.policies.rebuild(now)
            case ModelRemoved(model):
                self._remove_model(model, now)
            case _:
                self._observe_executor(event, now)

    def _observe_executor(self, event: ExecutorEvent, now: float) -> None:
        match event:
            case CoresApplied(name, cores, part, cost):
                executor = self.executors[name]
                executor.resize(cores, now, part)
                executor.cost = cost or executor.cost
                self.policies.on_executor(executor, now)
            case ExecutorAdded(spec):
                self._add_executor(spec, now)
            case ExecutorReady(name, offer):
                self._on_ready(self.executors[name], offer, now)
            case ExecutorSuspected(name):
                self._on_suspected(self.executors[name], now)
            case ExecutorLost(name):
                self._lose(self.executors[name], now)
            case ExecutorRemoved(name):
                self._remove_executor(self.executors[name], now)
            case ModelsAssigned(name, models):
                self._check_models(name, models)
                self.executors.assign(name, models)
            case ModelsMissing(name, models):
                self._on_missing(self.executors[name], models, now)
            case _:
                assert_never(event)

    def _on_ended(self, ended: ExecutionEnded, now: float) -> None:
        execution, result = self._executions.running.get(ended.execution), ended.result
        if execution is None:
            return  # given up when its executor was lost
        executor = self.executors[execution.executor]
        self._executions.end(execution, result, ended.duration, now)
        failed = is_error(result)
        if not failed:
            executor.completed += 1
        if failed or executor.errors or executor.rotation is _PROBING or executor.fault_share:
            self._ejections.on_ended(executor, execution.model, result, now)
        if execution.part is None or execution.part.is_last or result is not _OK:
            self._requests.finish(execution, result, executor.spec.device, now)
        else:
            assert executor.planned is not None
            self._requests.keep(execution, executor.planned, now)
        self.policies.on_queue(self.queues[execution.model], now)
        self.policies.on_executor(executor, now)

    def _on_missed(self, number: int, now: float) -> None:
        execution = self._executions.take_back(number, now)
        if execution is not None:
            self._requests.resume(execution, now)
            self.policies.on_queue(self.queues[execution.model], now)
            self.policies.on_executor(self.executors[execution.executor], now)

    def _on_unreachable(self, number: int, gone: bool, now: float) -> None:
        execution = self._executions.take_back(number, now)
        if execution is None:
            return
        executor = self.executors[execution.executor]
        detail = f"executable {executor.spec.name} cannot be reached"
        self._requests.repeat(execution, detail, now)
        self.policies.on_queue(self.queues[execution.model], now)
        # Executions on its other connections may be fine, even if it refuses new ones: a server
        # that shuts down does so, and ends what it has.
        if gone and not executor.running:
            self._lose(executor, now)
        else:
            self._on_suspected(executor, now)

    def _add_executor(self, spec: ExecutorSpec, now: float) -> None:
        self._check_models(spec.name, spec.models)
        self.executors.add(spec)
        self.policies.attach(now)

    def _check_models(self, name: str, models: tuple[str, ...]) -> None:
        unknown = set(models) - set(self.queues)
        assert not unknown, f"executor {name} names unknown models {sorted(unknown)}"

    def _remove_executor(self, executor: Executor, now: float) -> None:
        if executor.state is not ExecutorState.LOST:
            self._lose(executor, now)
        self.executors.remove(executor.spec.name)
        self.policies.attach(now)

    def _remove_model(self, model: str, now: float) -> None:
        for executor in [e for e in self.executors if e.spec.models == (model,)]:
            self._remove_executor(executor, now)
        self._executions.give_up_model(model, now)
        self._requests.reject_all(model, now)
        self._queues.remove(model)
        self.policies.rebuild(now)

    def _on_ready(self, executor: Executor, offer: Capabilities | None, now: float) -> None:
        if executor.suspected:
            executor.confirm()
        else:
            executor.step(ExecutorStep.READY)
            if executor.spec.is_planned:
                assert offer is not None, f"planned executor {executor.spec.name} without offer"
                executor.planned = DeviceState(offer)
        self._report(executor, now)

    def _on_missing(self, executor: Executor, models: tuple[str, ...], now: float) -> None:
        self.executors.miss(executor.spec.name, models)
        for needed in (executor, *self._ejections.on_lost()):
            self._report(needed, now)
        self._reject_unserved(models, now)

    def _on_suspected(self, executor: Executor, now: float) -> None:
        # Without this a failing executable would be free again after each request that it breaks,
        # and would drain the whole queue before its loss is detected.
        if executor.live:
            executor.step(ExecutorStep.SUSPECT)
        self._report(executor, now)

    def _lose(self, executor: Executor, now: float) -> None:
        executor.step(ExecutorStep.LOSE)
        self._executions.lose(executor, now)
        self.executors.miss(executor.spec.name, ())
        for needed in (executor, *self._ejections.on_lost()):
            self._report(needed, now)
        self._reject_unserved(executor.spec.models, now)

    def _reject_unserved(self, models: tuple[str, ...], now: float) -> None:
        for model in models:
            # A GPU may still hold a model that was removed.
            if model in self.queues and not self.executors.serve(model):
                self._requests.reject_all(model, now)

    def _report(self, executor: Executor, now: float) -> None:
        """Tell the policies that an executor came, went, or serves other models."""
        if executor.spec.device is Device.GPU and self._match_gpus():
            self.policies.rebuild(now)
        else:
            self.policies.on_executor(executor, now)

    def _match_gpus(self) -> bool:
        """Let GPUs take only what all of them have; return True if policies must begin anew.

        Policies know a model on every GPU or on none. A GPU that lacks more than the most complete
        one takes nothing.
        """
        changed = self.executors.update_off_gpus()
        for gpu in self.executors.gpus:
            if gpu.missing and gpu.live and not gpu.missing <= self.executors.off_gpus:
                changed = changed or not gpu.suspected
                gpu.step(ExecutorStep.SUSPECT)
        return changed

    # Decisions

    def _dispatch(self, now: float) -> None:
        self._wait_until = None
        for scheduler in self.policies.active:
            while True:
                choice = scheduler.choose(now)
                match choice:
                    case None:
                        break
                    case RunChoice():
                        self._run(choice, self.queues[choice.model], now)
                    case Batch() | BatchGroup() | LoadChoice() | UnloadChoice():
                        self._executions.act(choice, now)
                    case DropChoice():
                        for request_id in choice.requests:
                            ticket = self._requests.live[request_id]
                            self._requests.reject(ticket, choice.reason, choice.detail, now)
                    case WaitUntil():
                        self._wait_until = min(choice.time, self._wait_until or choice.time)
                        break
                    case _:
                        assert_never(choice)
        if self.low_priority:
            self._run_low_priority(now)

    def _run_low_priority(self, now: float) -> None:
        """Run low-priority requests in the capacity that the policies left free, in turns."""
        for model, low in tuple(self.low_priority.items()):
            has_run = False
            while (head := low.head) is not None:
                is_long = (
                    head.size >= low.sizes.upper
                    and holds_too_long(head, self.queues[model], self.executors) is not None
                )
                executor = executor_with_headroom(
                    self.queues[model], self.executors, now, is_long=is_long
                )
                if executor is None:
                    look = now + RECHECK_INTERVAL
                    self._wait_until = min(look, self._wait_until or look)
                    break
                self._run(RunChoice(executor.spec.name, model), low, now)
                has_run = True
            if has_run:  # the next GPU that they share is another model's
                self.low_priority[model] = self.low_priority.pop(model)

    def _run(self, choice: RunChoice, queue: ModelQueue, now: float) -> None:
        """Run the first requests of a queue that are not too late."""
        taken: list[Request] = []
        while len(taken) < choice.count:
            first = queue.youngest if choice.youngest else queue.head
            if first is None:
                break
            late = None
            if now > first.arrived:
                late = too_late(first, queue, self.executors, now, self._grace)
            if late is not None:
                self._requests.reject(self._requests.live[first.id], late[0], late[1], now)
                continue
            queue.remove(first.id)
            taken.append(first)
        if taken:
            self._executions.run(choice, queue, tuple(taken), now)

"""Runner of one planned device: a `DeviceCore`, a clock, and threads that execute its steps.

INFERs are executed in one thread and LOADs in another, because the device computes and copies
concurrently. If inputs and outputs must be copied, two more threads do it: inputs as soon as an
INFER arrives, outputs after it ends (§5.2). An UNLOAD frees its pages immediately; its memory is
released in the LOAD thread, so that the next LOAD finds it free.

Everything except the runtime's work happens on the event loop. An action's measured time includes
the hand-over to the thread and back: it is the time that the lane was occupied, which is what the
next action waits.
"""

import logging
import time
from asyncio import Future, get_running_loop
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roma.device.core import Begin, DeviceCore, Step
from roma.device.lane import WorkThread
from roma.device.precise import Alarm
from roma.device.runtimes.base import (
    CoExecutingRuntime,
    Runtime,
    RuntimeItem,
    default_signature,
)
from roma.device_protocol import ActionResult, Submit, bytes_of, check
from roma.domain.actions import (
    Action,
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Discard,
    ExecutionPart,
    Infer,
    Load,
    ModelCapabilities,
    Unload,
)
from roma.domain.errors import RomaError, TensorError

Reply = Callable[[ActionResult], None]

MAX_WAITING = 4096
"""Most waiting actions; a dispatcher that keeps a device busy for some milliseconds sends a few."""
MAX_WAITING_BYTES = 512 * 2**20
"""Most bytes of inputs that wait or are executed, which the device keeps in its memory (§5.2)."""
MAX_DETAIL = 1000
"""Most characters of an error that are reported."""
SHUTTING_DOWN = "the device is shutting down"
"""Detail of an action that is not begun for this reason."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """An unfinished action, with its dispatcher's id and reply function."""

    message: Submit
    reply: Reply | None
    size: int
    staged: "_Staged | None" = None
    """Its inputs on the device, if they must be copied there."""
    outputs: Any = None
    before: Any = None
    """Results of the segment before this one, on the device."""


class _Staged:
    """Inputs that are being copied to the device."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._future: futures.Future[Any] = futures.Future()

    def do(self) -> None:
        """Copy the inputs; runs in the input thread."""
        try:
            self._future.set_result(self._work())
        except Exception as error:  # raised again in `get`, as the execution's error
            self._future.set_exception(error)

    def get(self) -> Any:
        """Wait for the copy, in the execution thread; raises the error that the copy raised."""
        return self._future.result()


class DeviceRunner:
    """Runner of a planned device on a runtime; `models` are the models to serve."""

    def __init__(
        self,
        runtime: Runtime,
        models: Mapping[str, ModelCapabilities],
        pages: int,
        *,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._core = DeviceCore(pages, {name: offer.pages for name, offer in models.items()})
        self._infers, self._loads = WorkThread("infer"), WorkThread("load")
        self._inputs = WorkThread("input") if runtime.copies else None
        self._outputs = WorkThread("output") if runtime.copies else None
        self._alarm = Alarm(self._on_alarm)
        self._tasks: dict[int, _Task] = {}
        """Tasks by the device's own ids, because a new dispatcher may reuse its predecessor's."""
        self._running: set[int] = set()
        self._group: list[Infer] = []
        """INFERs that begin together with one that has not come yet."""
        self._kept: dict[int, tuple[Infer, Any]] = {}
        """Segments that ended and what each left, by its dispatcher's id."""
        self._co_executing = runtime if isinstance(runtime, CoExecutingRuntime) else None
        self._together = 1 if self._co_executing is None else self._co_executing.together
        self._bytes = 0
        self._sequence = 0
        self._max_waiting, self._max_bytes = max_waiting, max_waiting_bytes
        self._is_ending = False
        self._quiet: list[Future[None]] = []

    def __repr__(self) -> str:
        return f"<Device: {len(self._tasks)} actions, {self._core!r}>"

    @property
    def offer(self) -> Capabilities:
        """Capabilities of the device, including the models loaded now."""
        loaded = tuple(sorted(self._core.loaded))
        return Capabilities(self._core.pages, self._models, loaded, self._together)

    def start(self) -> None:
        """Start the threads; raises OSError."""
        self._alarm.start()
        for lane in self._lanes():
            lane.start()

    async def stop(self, limit: float) -> bool:
        """Wait for running actions; return whether they ended within `limit` seconds."""
        self._is_ending = True
        now = time.monotonic()
        for task in self._take_waiting():
            if task.reply is not None:
                number, status = task.message.action.id, ActionStatus.ENDING
                task.reply(ActionResult(ActionOutcome(number, status, now, now, SHUTTING_DOWN)))
        self._alarm.stop()
        until = time.monotonic() + limit
        # In the order of an INFER's steps: each step hands its result to the next.
        ended = [await lane.stop(max(0.0, until - time.monotonic())) for lane in self._lanes()]
        return all(ended)

    def submit(self, message: Submit, reply: Reply) -> None:
        """Take an action; `reply` gets its single result, now or later."""
        now = time.monotonic()
        size = sum(map(bytes_of, message.inputs.values()))
        try:
            refused = self._refusal(message, size)
        except TensorError as error:
            refused = ActionStatus.INVALID, str(error)
        if refused is not None:
            reply(ActionResult(ActionOutcome(message.action.id, refused[0], now, now, refused[1])))
            self._begin_group(message.action, now)  # the others do not wait for it
            return
        self._sequence += 1
        self._tasks[self._sequence] = task = _Task(message, reply, size)
        self._bytes += size
        action = replace(message.action, id=self._sequence)
        if isinstance(action, Infer):
            if self._inputs is not None and message.inputs:
                task.staged = _Staged(partial(self._runtime.stage, action.model, message.inputs))
                self._inputs.begin(task.staged.do, _ignore)
            self._group.append(action)
            self._begin_group(action, now)
            return
        if isinstance(action, Discard):
            self._kept.pop(action.infer, None)
        self._follow(self._core.submit(action, now))

    def _begin_group(self, last: Action, now: float) -> None:
        """Pass INFERs that begin together to the core, if this is the last of them."""
        if not isinstance(last, Infer) or (last.part is not None and last.part.with_next):
            return
        group, self._group = self._group, []
        if group:
            self._follow(self._core.submit_together(group, now))

    def drop(self) -> None:
        """Drop waiting actions and the replies of running ones: their dispatcher disconnected."""
        self._take_waiting()
        self._kept.clear()
        for task in self._tasks.values():
            task.reply = None
        self._alarm.set(None)

    def _take_waiting(self) -> "list[_Task]":
        """Remove the actions that have not begun, and return them."""
        numbers = [*self._core.drop(), *(action.id for action in self._group)]
        tasks = [self._tasks.pop(number) for number in numbers]
        self._bytes -= sum(task.size for task in tasks)
        self._group.clear()
        return tasks

    async def quiet(self) -> None:
        """Wait until no action runs."""
        while self._running:
            future: Future[None] = get_running_loop().create_future()
            self._quiet.append(future)
            await future

    def _refusal(self, message: Submit, size: int) -> tuple[ActionStatus, str] | None:
        """Return the status and reason if an action must be refused; raises TensorError."""
        if self._is_ending:
            return ActionStatus.ENDING, SHUTTING_DOWN
        held = len(self._tasks) + len(self._kept)
        if held >= self._max_waiting and not isinstance(message.action, Discard):
            return ActionStatus.BUSY, f"actions = {held}: must be < {self._max_waiting}"
        if self._bytes + size > self._max_bytes:
            return (
                ActionStatus.BUSY,
                f"inputs = {self._bytes + size} bytes: must be ≤ {self._max_bytes}",
            )
        # The core reports an unknown model.
        if isinstance(message.action, Infer) and message.action.model in self._models:
            part = message.action.part
            fault = "" if part is None else self._part_fault(message.action, part)
            if fault:  # the dispatcher's, not its client's
                return ActionStatus.ERROR, fault
            self._check(message.action, message)
        return None

    def _check(self, action: Infer, message: Submit) -> None:
        offer = self._models[action.model]
        sizes = offer.executions
        if offer.any_batch and action.batch > max(sizes):
            raise TensorError(f"batch = {action.batch}: must be ≤ {max(sizes)}")
        if not offer.any_batch and action.batch not in sizes:
            known = ", ".join(map(str, sorted(sizes)))
            raise TensorError(f"batch = {action.batch}: must be one of {known}")
        signatures = self._runtime.models[action.model].signatures
        name = message.signature or default_signature(signatures)
        if name not in signatures:
            raise TensorError(f"signature = {name}: must be one of {', '.join(signatures)}")
        if action.part is None or not action.part.continues:  # else they came with the first
            check(message.inputs, signatures[name], action.batch)

    def _part_fault(self, action: Infer, part: ExecutionPart) -> str:
        """Return why an action cannot be executed in part or with others; "" if it can."""
        segment, total = part.segment, self._models[action.model].segments
        if part.with_next and len(self._group) + 1 >= self._together:
            return f"with_next: this device executes {self._together} at once"
        if segment is not None and self._co_executing is None:
            return "segment: this device executes whole models alone"
        if segment is not None and segment.total != total:
            return f"segment.total = {segment.total}: must be {total}"
        begin, ended = 0 if segment is None else segment.begin, 0
        if part.continues in self._kept:
            last = self._kept[part.continues][0]
            assert last.part is not None
            assert last.part.segment is not None
            ended = last.part.segment.end
            if (last.model, last.batch) != (action.model, action.batch):
                return f"continues = {part.continues}: is {last.model}, batch {last.batch}"
        if begin != ended or (part.continues and not ended):
            return f"segment.begin = {begin}: must be where {part.continues} ended ({ended})"
        return ""

    def _on_alarm(self) -> None:
        self._follow(self._core.advance(time.monotonic()))

    def _follow(self, steps: list[Step]) -> None:
        # Start device work first: replies can wait some microseconds.
        for step in steps:
            if isinstance(step, Begin):
                self._begin(step)
        self._alarm.set(self._core.next_wakeup())
        for step in steps:
            if isinstance(step, ActionOutcome):
                self._tell(step)

    def _begin(self, step: Begin) -> None:
        action, runtime = step.action, self._runtime
        if isinstance(action, Load):
            self._running.add(action.id)
            self._loads.begin(partial(runtime.load, action.model), partial(self._on_end, action.id))
            return
        numbers = [action.id, *(other.id for other in step.others)]
        self._running.update(numbers)
        tasks = [self._tasks[number] for number in numbers]
        if not step.others and (action.part is None or action.part.segment is None):
            work = partial(_execute, runtime, tasks[0], self._signature(tasks[0]))
            self._infers.begin(work, partial(self._on_end, action.id))
            return
        for task in tasks:
            assert isinstance(task.message.action, Infer)
            if (part := task.message.action.part) is not None and part.continues:
                task.before = self._kept.pop(part.continues, (None, None))[1]
        assert self._co_executing is not None
        together = [(task, self._signature(task)) for task in tasks]
        work = partial(_execute_together, self._co_executing, together)
        self._infers.begin(work, partial(self._on_ends, numbers))

    def _signature(self, task: "_Task") -> str:
        signatures = self._runtime.models[task.message.action.model].signatures
        return task.message.signature or default_signature(signatures)

    def _lanes(self) -> list[WorkThread]:
        lanes = (self._inputs, self._infers, self._outputs, self._loads)
        return [lane for lane in lanes if lane is not None]

    def _on_end(self, number: int, value: Any, error: Exception | None) -> None:
        now = time.monotonic()
        task = self._tasks[number]
        self._running.remove(number)
        if isinstance(task.message.action, Infer) and error is None:
            task.outputs = value
        status, detail = _judged(error)
        self._follow(self._core.end(number, status, now, detail))
        if status is ActionStatus.ERROR:
            _log.error("%s: %s", task.message.action, detail, exc_info=_unexpected(error))
        if not self._running:
            waiting, self._quiet = self._quiet, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _on_ends(
        self, numbers: Sequence[int], values: Sequence[Any] | None, error: Exception | None
    ) -> None:
        for number, value in zip(numbers, values or [error] * len(numbers), strict=True):
            is_error = isinstance(value, Exception)
            self._on_end(number, None if is_error else value, value if is_error else None)

    def _tell(self, outcome: ActionOutcome) -> None:
        task = self._tasks.pop(outcome.id)
        self._bytes -= task.size
        action = task.message.action
        if isinstance(action, Unload) and outcome.status is ActionStatus.OK:
            work = partial(self._runtime.unload, action.model)
            self._loads.begin(work, partial(_on_unloaded, action.model))
        result = ActionResult(replace(outcome, id=action.id))
        if task.reply is None:
            return
        if task.outputs is None or outcome.status is not ActionStatus.OK:
            task.reply(result)
            return
        if isinstance(action, Infer) and action.part is not None and not action.part.is_last:
            self._kept[action.id] = action, task.outputs
            task.reply(result)
            return
        fetch = partial(self._runtime.fetch, action.model, self._signature(task), task.outputs)
        done = partial(_on_fetched, task.reply, result)
        if self._outputs is not None:
            self._outputs.begin(fetch, done)
        else:
            WorkThread.here(fetch, done)


def _execute(runtime: Runtime, task: _Task, signature: str) -> Any:
    """Execute a batch once its inputs are on the device."""
    return runtime.execute(task.message.action.model, signature, _inputs(runtime, task))


def _inputs(runtime: Runtime, task: _Task) -> Any:
    """Return the inputs on the device, or what the segment before this one left there."""
    action = task.message.action
    if isinstance(action, Infer) and action.part is not None and action.part.continues:
        if task.before is None:
            raise TensorError(f"continues = {action.part.continues}: another one has gone on there")
        return task.before
    if task.staged is not None:
        return task.staged.get()
    return runtime.stage(action.model, task.message.inputs)


def _execute_together(
    runtime: CoExecutingRuntime, tasks: Sequence[tuple[_Task, str]]
) -> Sequence[Any]:
    """Execute batches, or segments, at once; return what each left, or its error."""
    items = [_item(runtime, *task) for task in tasks]
    able = [item for item in items if isinstance(item, RuntimeItem)]
    left = iter(runtime.execute_together(able) if able else ())
    return [next(left) if isinstance(item, RuntimeItem) else item for item in items]


def _item(runtime: Runtime, task: _Task, signature: str) -> RuntimeItem | Exception:
    action = task.message.action
    assert isinstance(action, Infer)
    segment = None if action.part is None else action.part.segment
    try:
        return RuntimeItem(action.model, signature, segment, _inputs(runtime, task))
    except Exception as error:  # it is one action's outcome, not that of its group
        return error


def _on_fetched(reply: Reply, result: ActionResult, value: Any, error: Exception | None) -> None:
    if error is None:
        reply(replace(result, outputs=value))
        return
    _log.error("outputs of action %d: %s", result.outcome.id, error, exc_info=_unexpected(error))
    status, detail = _judged(error)
    reply(replace(result, outcome=replace(result.outcome, status=status, detail=detail)))


def _ignore(value: object, error: Exception | None) -> None:
    """Ignore the result of a copy, which `_Staged.get` returns when it is needed."""


def _judged(error: Exception | None) -> tuple[ActionStatus, str]:
    if error is None:
        return ActionStatus.OK, ""
    status = ActionStatus.INVALID if isinstance(error, TensorError) else ActionStatus.ERROR
    return status, (str(error) or type(error).__name__)[:MAX_DETAIL]


def _unexpected(error: Exception | None) -> Exception | None:
    """Return an error that should be logged with a traceback, else None."""
    return None if isinstance(error, RomaError) else error


def _on_unloaded(model: str, _: object, error: Exception | None) -> None:
    if error is not None:
        _log.error("%s: its memory was not given back: %s", model, error, exc_info=error)

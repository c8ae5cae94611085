"""Running executions, and the LOADs of planned devices: started, ended, missed or given up."""

from typing import Final, assert_never

from dispatcher.guards.admission import USUAL
from dispatcher.policies import Policies
from dispatcher.requests import Requests
from dispatcher.schedulers.base import Batch, BatchGroup, LoadChoice, RunChoice, UnloadChoice
from dispatcher.state.execution import Execution
from dispatcher.state.executor import Executor
from dispatcher.state.executors import Executors
from dispatcher.state.queues import ModelQueue, Queues
from roma.domain.actions import ExecutionPart
from roma.domain.events import Abort, Execute, LoadEnded, LoadModel, Result, UnloadModel
from roma.domain.model import Priority, Request

_OK: Final = Result.OK  # reading a member of an Enum costs 70 ns in Python 3.11
_TIMEOUT: Final = Result.TIMEOUT
_INTERACTIVE: Final = Priority.INTERACTIVE


class Executions:
    """The running executions by number; each holds a slot of its executor, awaited or not."""

    def __init__(
        self, queues: Queues, executors: Executors, policies: Policies, requests: Requests
    ) -> None:
        self._queues = queues
        self._executors = executors
        self._policies = policies
        self._requests = requests
        self.running: dict[int, Execution] = {}
        self._loads: dict[int, tuple[str, str]] = {}
        """Executor and model by the number of each LOAD that has not ended."""
        self._next = 1

    def _start(
        self,
        executor: Executor,
        model: str,
        requests: tuple[Request, ...],
        now: float,
        *,
        variant: str,
        size: int,
        part: ExecutionPart | None = None,
    ) -> Execution:
        """Start an execution of requests that have left their queues."""
        execution = Execution(
            self._next,
            executor.spec.name,
            model,
            requests,
            started=now,
            variant=variant,
            size=size,
            part=part,
        )
        self._next += 1
        self.running[execution.id] = execution
        executor.start(execution)
        for request in requests:
            self._requests.run(request, execution)
        return execution

    def run(
        self, choice: RunChoice, queue: ModelQueue, requests: tuple[Request, ...], now: float
    ) -> None:
        """Run requests of one queue, as a policy chose."""
        executor, model = self._executors[choice.executor], queue.spec.name
        assert model not in executor.missing, f"{choice.executor} does not have model {model}"
        variant = choice.variant or model
        execution = self._start(executor, model, requests, now, variant=variant, size=1)
        numbers = tuple([request.id for request in requests])
        self._requests.commands.append(
            Execute(execution.id, choice.executor, model, numbers, variant=variant)
        )
        self._policies.on_queue(queue, now)
        self._policies.on_executor(executor, now)

    def _run_together(self, choice: BatchGroup, now: float) -> None:
        last = len(choice.batches) - 1
        for i, batch in enumerate(choice.batches):
            part = ExecutionPart(batch.segment, batch.continues, with_next=i < last)
            # They end together: the first one's time is that of all.
            self._run_batch(batch, now, part, choice.seconds if i == 0 else 0.0)

    def act(self, choice: Batch | BatchGroup | LoadChoice | UnloadChoice, now: float) -> None:
        """Send an action, or those that begin together, to a planned device."""
        if isinstance(choice, BatchGroup):
            self._run_together(choice, now)
            return
        name, model = choice.executor, choice.model
        executor, number = self._executors[name], self._next
        device, commands = executor.planned, self._requests.commands
        assert device is not None, f"{executor!r} is not a planned device"
        match choice:
            case Batch():
                self._run_batch(choice, now)
                return
            case LoadChoice():
                self._next += 1
                device.begin_load(number, model, now)
                self._loads[number] = name, model
                commands.append(LoadModel(number, name, model, choice.latest))
            case UnloadChoice():
                device.unload(model)
                commands.append(UnloadModel(name, model))
            case _:
                assert_never(choice)
        self._policies.on_memory(executor, model, now)

    def _run_batch(
        self,
        batch: Batch,
        now: float,
        part: ExecutionPart | None = None,
        expected: float | None = None,
    ) -> None:
        executor, model, numbers = self._executors[batch.executor], batch.model, batch.requests
        variant, size = batch.variant or model, batch.size or len(numbers)
        if part is not None and part.continues:
            kept = self._requests.partial.begin(part.continues).execution
            assert kept.executor == batch.executor, f"{kept.executor} has what {batch} continues"
            requests, variant, size = kept.requests, kept.variant, kept.size
            numbers = tuple([request.id for request in requests])
        else:
            requests = tuple([self._requests.live[number].request for number in numbers])
        for request in requests:
            if request.id in self._requests.live:
                self._queues.of(request).remove(request.id)
        execution = self._start(
            executor, model, requests, now, variant=variant, size=size, part=part
        )
        assert executor.planned is not None
        executor.planned.begin(execution.id, variant, size, now, expected)
        self._requests.commands.append(
            Execute(
                execution.id,
                executor.spec.name,
                model,
                numbers,
                (batch.earliest, batch.latest),
                variant=variant,
                size=size,
                part=part,
            )
        )
        self._policies.on_queue(self._queues.by_model[model], now)
        self._policies.on_executor(executor, now)

    def end(self, execution: Execution, result: Result, duration: float | None, now: float) -> None:
        """Free the slot of an execution that ended, and learn from it how long requests take.

        `duration` is what a planned device measured, in seconds.
        """
        del self.running[execution.id]
        executor = self._executors[execution.executor]
        queue = self._queues.by_model[execution.model]
        executor.finish(execution, now)
        part = execution.part
        if executor.planned is not None:
            measured = duration if result is _OK and part is None else None
            executor.planned.end(execution.id, execution.variant, execution.size, now, measured)
        if part is not None:
            self._requests.partial.end(part.continues)
            return  # it says nothing about whole requests
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
        if result is _OK or result is _TIMEOUT:
            executor.record(execution, now, is_bound=result is _TIMEOUT)

    def _note_size(self, request: Request, queue: ModelQueue, now: float) -> None:
        """Count a request of unusual size; keep what is known of the sizes that were usual."""
        sizes, model = queue.sizes, request.model
        usual = (sizes.lower + sizes.upper) // 2
        if sizes.note(request.size, now) and usual:
            for executor in self._executors.of(model):
                executor.keep_large(model, usual)

    def take_back(self, number: int, now: float) -> Execution | None:
        """Free the slot of an execution that never ran; return it, None if it was given up."""
        execution = self.running.pop(number, None)
        if execution is None:
            return None
        self._free(execution, now)
        if execution.part is not None:
            self._requests.partial.take_back(execution.part.continues, self._requests.commands)
        return execution

    def _free(self, execution: Execution, now: float) -> None:
        """Free the slot of an execution that measured nothing."""
        executor = self._executors[execution.executor]
        executor.finish(execution, now)
        if executor.planned is not None:
            executor.planned.end(execution.id, execution.variant, execution.size, now, None)

    def end_load(self, ended: LoadEnded, now: float) -> None:
        """Record how a LOAD ended."""
        name, model = self._loads.pop(ended.load, ("", ""))
        if name not in self._executors:
            return  # its executor was lost in the meantime
        executor = self._executors[name]
        assert executor.planned is not None
        executor.planned.end_load(ended.load, model, ended, now)
        self._policies.on_memory(executor, model, now)

    def lose(self, executor: Executor, now: float) -> None:
        """Give up all that a lost executor was doing."""
        name = executor.spec.name
        if executor.spec.is_planned:
            self._loads = {n: what for n, what in self._loads.items() if what[0] != name}
        self._requests.partial.lose(name)
        for execution in executor.running.values():
            self._give_up(execution, f"executable {name} was lost")
        executor.abandon(now)

    def give_up_model(self, model: str, now: float) -> None:
        """Give up the executions of a model that was removed."""
        for execution in [e for e in self.running.values() if e.model == model]:
            self._free(execution, now)
            self._give_up(execution, f"model {model} was removed")

    def _give_up(self, execution: Execution, detail: str) -> None:
        del self.running[execution.id]
        if execution.part is not None:
            self._requests.partial.end(execution.part.continues)
        self._requests.commands.append(Abort(execution.id))
        self._requests.fail(execution, detail)

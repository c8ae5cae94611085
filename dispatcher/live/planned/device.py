"""A planned device: the core's commands as its actions, their results as the core's events.

The core's state of a device is exact only while both agree. A result that shows a disagreement (a
model that we thought loaded is not there, pages that we thought free are taken) ends the
connection: the next one begins with the device's report of what it holds. Running actions have
failed then.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from dispatcher.live.auth.callers import Grant
from dispatcher.live.driver import Call, Driver
from dispatcher.live.http.responses import error
from dispatcher.live.planned.capabilities import check_agreement, checked, readable
from dispatcher.live.planned.client import ActionClient
from dispatcher.live.planned.examples import ExampleCall, joined, split
from dispatcher.live.unavailable import Reasons
from roma.config.executable import Executable
from roma.config.watched_file import Watched
from roma.device_protocol import ActionResult, Array, Hello, Signature
from roma.domain.actions import (
    Action,
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Discard,
    ExecutionPart,
    Infer,
    Load,
    Unload,
)
from roma.domain.errors import TensorError, WireError
from roma.domain.events import (
    DiscardResults,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutionUnreachable,
    ExecutorReady,
    ExecutorSuspected,
    Fail,
    LoadEnded,
    LoadModel,
    UnloadModel,
)
from roma.domain.events import Result as Verdict
from roma.domain.model import ModelSpec
from roma.domain.stats import Histogram, decades
from roma.security.tokens import Token
from roma.telemetry.logs import RateLimitedLogger
from roma.tensors import arrays

Signatures = dict[str, "ModelSignatures"]
"""Signatures by model."""

ActionCommand = Execute | LoadModel | UnloadModel | DiscardResults

log: Final = logging.getLogger(__name__)

ERRORS: Final = decades(1e-5, 1.0)
"""Bounds in seconds of the histograms of prediction errors."""

_DISAGREES: Final = frozenset({ActionStatus.NOT_LOADED, ActionStatus.NO_PAGES, ActionStatus.BUSY})
"""Statuses of a LOAD or UNLOAD on a device that is not in the state that the core assumes."""


_NOT_BEGUN: Final = frozenset({ActionStatus.MISSED, ActionStatus.ENDING})
"""Statuses without a fault in the device's state: nothing was done, and it may be retried."""

_RETRIABLE: Final = _NOT_BEGUN | {ActionStatus.BUSY}
"""Statuses after which the requests of a batch wait again, and may run elsewhere."""

_CLOSED: Final = "the connection is closed"


@dataclass(frozen=True, slots=True)
class ModelSignatures:
    """A model's signatures by name: for a worker's checks, and for reading JSON.

    `most` is the largest batch that a worker accepts for it.
    """

    told: Mapping[str, Signature]
    readable: Mapping[str, arrays.ServingSignature]
    most: int


class PlannedDevice:
    """Carries out the core's commands for one planned executor.

    `signatures` are those of all devices, by model, as last reported; all variants of a model share
    one. `timeout` is how long an action may take before the device counts as hung, in seconds.
    """

    def __init__(
        self,
        executable: Executable,
        driver: Driver,
        signatures: Signatures,
        *,
        timeout: float,
        reasons: Reasons,
        token: Watched[Token] | None = None,
    ) -> None:
        self.name = executable.name
        self.actions: Counter[tuple[str, ActionStatus]] = Counter()
        """Numbers of ended actions, by kind and status."""
        self.overruns = {kind: Histogram(ERRORS) for kind in ("infer", "load")}
        """Seconds by which actions exceeded the prediction, by kind (Fig. 10)."""
        self.underruns = {kind: Histogram(ERRORS) for kind in ("infer", "load")}
        """Seconds by which all other actions ended early."""
        self._names: dict[str, tuple[str, ...]] = {}
        """Names on the device, by model."""
        self._driver = driver
        self._signatures = signatures
        self._timeout = timeout
        self._reasons = reasons
        self._complaints = RateLimitedLogger(log, asyncio.get_running_loop())
        self._asked: dict[int, tuple[ActionCommand, float, float]] = {}
        """Command, start and predicted seconds of each action; the oldest first."""
        self._ended: dict[type[ActionCommand], float] = {}
        """Time of the last result of each kind of action, on this connection."""
        self._group: list[tuple[Execute, Sequence[Call | None]]] = []
        """Batches that begin together with one that has not come yet."""
        self._kept: dict[int, int] = {}
        """Actions whose results the device keeps for the next segment, by execution."""
        self._held: dict[int, list[Grant]] = {}
        """Callers' grants of each action, held as long as it runs."""
        self._last_action = 0
        self._hello: Hello | None = None
        """Its report at the last connection; None while there is none."""
        self.assign(executable.spec.models)
        self._client = ActionClient(
            f"roma dispatcher, {self.name}",
            (executable.host, executable.port),
            self,
            clock=driver.clock,
            token=token,
        )

    def __repr__(self) -> str:
        return f"<Device {self.name}: {len(self._asked)} actions, {self._client!r}>"

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            await self._client.run()
        finally:
            self._complaints.close()
            self._release_all()

    def assign(self, models: Iterable[str]) -> None:
        """Serve these models from now on; what runs goes on."""
        queues = self._driver.core.queues
        self._names = {model: queues[model].spec.served_as for model in models}
        if self._hello is None:
            return
        try:
            self._note_signatures(self._hello, _usable(self._hello, self._names))
        except WireError as fault:  # it came back with other models while roma.yaml was read
            self._client.drop(str(fault))

    # The driver's commands

    def execute(self, command: Execute, calls: Sequence[Call | None]) -> None:
        """Run a batch; a call is None if it was cancelled between the command and now."""
        if command.part is None:
            self._execute(command, calls, None)
            return
        self._group.append((command, calls))
        if command.part.with_next:
            return
        group, self._group = self._group, []
        waited_for = []
        for one in group:
            if any(call is not None for call in one[1]):
                waited_for.append(one)
            else:
                self._driver.handle(ExecutionMissed(one[0].execution))
        for i, (each, its_calls) in enumerate(waited_for):
            assert each.part is not None
            before = self._kept.get(each.part.continues, 0)
            is_last = i == len(waited_for) - 1
            part = replace(each.part, continues=before, with_next=not is_last)
            self._execute(each, its_calls, part)

    def _execute(
        self, command: Execute, calls: Sequence[Call | None], part: ExecutionPart | None
    ) -> None:
        examples = [call for call in calls if isinstance(call, ExampleCall)]
        if not examples:  # the core still counts it as running
            self._driver.handle(ExecutionMissed(command.execution))
            return
        for example in examples:
            example.whole.on_executing(self.name, self._client.address)
        filler = examples[-1].inputs
        # A row whose client has gone keeps its place: outputs are given by it.
        rows = [call.inputs if isinstance(call, ExampleCall) else filler for call in calls]
        rows += [filler] * (command.size - len(rows))  # pad the batch to the planned size
        number, (earliest, latest) = self._number(command), command.window
        infer = Infer(number, command.variant, command.size, earliest, latest, part)
        try:
            is_sent = self._is_sent(infer, {} if part and part.continues else joined(rows))
        except (WireError, ValueError, KeyError) as fault:  # it must end in the core's state
            del self._asked[number]
            self._fail(command, f"cannot send: {fault}")
            if part is not None:  # the others of its group would wait for it
                self._client.drop("a batch that begins together with others cannot be sent")
            return
        if not is_sent:  # another device may run it
            log.warning("executable %s is lost: %s", self.name, _CLOSED)
            self._driver.handle(ExecutionUnreachable(command.execution))
            self._client.drop(_CLOSED)
            return
        grants = [e.whole.call.grant for e in examples if e.whole.call.grant is not None]
        for grant in grants:
            grant.hold()
        self._held[number] = grants

    def load(self, command: LoadModel) -> None:
        """Copy a model's weights to the device."""
        number = self._number(command)
        self._send(Load(number, command.model, self._driver.clock(), command.latest))

    def unload(self, command: UnloadModel) -> None:
        """Free a model's memory."""
        self._send(Unload(self._number(command), command.model))

    def discard(self, command: DiscardResults) -> None:
        """Let the device forget what a segment left."""
        left = self._kept.pop(command.execution, None)
        if left is not None:
            self._send(Discard(self._number(command), command.model, left))

    def _number(self, command: ActionCommand) -> int:
        self._last_action += 1
        self._asked[self._last_action] = command, self._driver.clock(), self._predicted(command)
        return self._last_action

    def _predicted(self, command: ActionCommand) -> float:
        state = self._driver.core.executors[self.name].planned
        match command:
            case Execute() if state is not None:
                return state.execution(command.variant, command.size)
            case LoadModel() if state is not None:
                return state.loading(command.model)
        return 0.0

    def _send(self, action: Load | Unload | Discard) -> None:
        if not self._is_sent(action):
            self._client.drop(_CLOSED)

    def _is_sent(self, action: Action, inputs: Mapping[str, Array] | None = None) -> bool:
        if self._client.submit(action, inputs):
            return True
        del self._asked[action.id]
        return False

    # The client's news

    def on_hello(self, hello: Hello) -> None:
        """Take the device's capabilities; raises WireError if it cannot be used."""
        offer = _usable(hello, self._names)
        refused = self._driver.core.refusal(self.name, offer)
        if refused is not None:
            raise WireError(refused)
        self._note_signatures(hello, offer)
        self._hello = hello
        log.info(
            "executable %s is ready: device %s, %d pages, %d models loaded",
            self.name,
            hello.worker,
            offer.pages,
            len(offer.loaded),
        )
        self._reasons.note(self.name)
        self._driver.handle(ExecutorReady(self.name, offer))

    def _note_signatures(self, hello: Hello, offer: Capabilities) -> None:
        others = any(e.live for e in self._driver.core.executors if e.spec.name != self.name)
        found: Signatures = {}
        for model, names in self._names.items():
            told, known = hello.signatures.get(names[0], {}), self._signatures.get(model)
            most = max(max(offer.models[name].executions) for name in names)
            if others and known is not None:
                if known.told != told:
                    raise WireError(f"models.{model}: other signatures than another worker's")
                most = max(most, known.most)
            found[model] = ModelSignatures(told, readable(told), most)
        self._signatures.update(found)

    def refusal(self, models: Iterable[ModelSpec]) -> str | None:
        """Return why a connected device cannot serve these models, or None."""
        if self._hello is None:
            return None
        try:
            _usable(self._hello, {model.name: model.served_as for model in models})
        except WireError as error:
            return str(error)
        return None

    def on_lost(self, why: str) -> None:
        """Note that the device is lost, with all its pending actions."""
        self._hello = None
        self._asked.clear()
        self._ended.clear()
        self._group.clear()
        self._kept.clear()
        self._release_all()
        if self.name in self._driver.core.executors:
            self._driver.on_lost(self.name, why)

    def on_unreachable(self, why: str) -> None:
        """Note why the device is not connected, for the log and for operators."""
        self._reasons.note(self.name, unreached=why)

    def _release(self, number: int) -> None:
        for grant in self._held.pop(number, ()):
            grant.release()

    def _release_all(self) -> None:
        for number in list(self._held):
            self._release(number)

    def overdue(self, now: float) -> str | None:
        """Return the action whose answer is long overdue, or None."""
        for command, asked, _ in self._asked.values():
            # A device executes one of a kind at a time: the next began when the last had ended.
            since = max(asked, self._ended.get(type(command), asked))
            if now - since > self._timeout:
                return f"{_named(command)}: no result within {self._timeout:g} s"
        return None

    def on_result(self, result: ActionResult) -> None:
        """Take the result of an action; raises WireError if it matches no action."""
        outcome = result.outcome
        command, _, predicted = self._asked.pop(outcome.id, (None, 0.0, 0.0))
        self._release(outcome.id)
        if command is None:
            raise WireError(f"action {outcome.id}: was not asked for")
        self._ended[type(command)] = self._driver.clock()
        status = outcome.status
        self._suspect_if_ending(status)
        match command:
            case Execute():
                self.actions["infer", status] += 1
                if command.part is None:
                    self._compare("infer", outcome, predicted)
                self._on_executed(command, result)
            case LoadModel():
                self.actions["load", status] += 1
                self._compare("load", outcome, predicted)
                is_loaded, is_missed = status is ActionStatus.OK, status in _NOT_BEGUN
                took = max(0.0, outcome.duration) if is_loaded else None
                self._driver.handle(LoadEnded(command.load, is_loaded, took, is_missed))
            case UnloadModel():
                self.actions["unload", status] += 1
            case DiscardResults():
                self.actions["discard", status] += 1
            case _:
                assert_never(command)
        if status is not ActionStatus.OK and status not in _NOT_BEGUN:
            told = f"{_named(command)}: {status}: {outcome.detail}"
            self._log_disagreement(told, status)
            is_wrong = status in _DISAGREES
            if isinstance(command, Execute):  # a device that is full, or ending, is BUSY
                is_wrong = status is ActionStatus.NOT_LOADED
            if is_wrong:
                self._client.drop(f"its state is not what it should be: {told}")

    def _suspect_if_ending(self, status: ActionStatus) -> None:
        if status is ActionStatus.ENDING and self.name in self._driver.core.executors:
            self._driver.handle(ExecutorSuspected(self.name))  # it begins nothing more

    def _compare(self, kind: str, outcome: ActionOutcome, predicted: float) -> None:
        if outcome.status is ActionStatus.OK:
            beyond = outcome.duration - predicted
            errors = self.overruns if beyond > 0.0 else self.underruns
            errors[kind].add(abs(beyond))

    def _log_disagreement(self, told: str, status: ActionStatus) -> None:
        if status is ActionStatus.INVALID:
            return  # the client's fault, and the client gets the error
        label = f"executable {self.name}: {status}"
        fields = {"executable": self.name, "reason": status.value}
        self._complaints.log(
            label, logging.WARNING, "executable %s: %s", self.name, told, fields=fields
        )

    def _on_executed(self, command: Execute, result: ActionResult) -> None:
        outcome, driver = result.outcome, self._driver
        detail = outcome.detail or outcome.status.value
        is_missed = outcome.status in _RETRIABLE
        if is_missed:
            driver.handle(ExecutionMissed(command.execution))
        self._settle_part(command, outcome.status)
        if is_missed:
            return
        match outcome.status:
            case ActionStatus.OK if not command.is_last:
                self._keep(command, outcome.id)
            case ActionStatus.OK:
                try:
                    rows = split(result.outputs, command.size)
                except TensorError as fault:
                    self._fail(command, str(fault))
                    return
                took = max(0.0, outcome.duration)
                driver.handle(ExecutionEnded(command.execution, Verdict.OK, took))
                # Rows after the requests' ones are padding.
                for request, outputs in zip(command.requests, rows, strict=False):
                    call = driver.take(request)
                    if isinstance(call, ExampleCall):  # otherwise it was cancelled meanwhile
                        self._tell(call, outputs, command.variant)
            case ActionStatus.INVALID:
                driver.handle(ExecutionEnded(command.execution, Verdict.INVALID))
                for request in command.requests:
                    driver.resolve(request, error(400, detail))
            case _:
                self._fail(command, detail)

    def _keep(self, command: Execute, action: int) -> None:
        """Note that the device keeps what a segment left, if the core still wants it."""
        self._kept[command.execution] = action
        self._driver.handle(ExecutionEnded(command.execution, Verdict.OK))
        if command.execution not in self._driver.core.partial:
            self.discard(DiscardResults(self.name, command.variant, command.execution))

    def _settle_part(self, command: Execute, status: ActionStatus) -> None:
        """Note what became of what a segment was to go on with; discard it if nothing can."""
        part = command.part
        if part is None:
            return
        if status is ActionStatus.OK:
            self._kept.pop(part.continues, None)
        elif part.continues not in self._driver.core.partial or status not in _RETRIABLE:
            self.discard(DiscardResults(self.name, command.variant, part.continues))

    def _tell(self, example: ExampleCall, outputs: Mapping[str, Array], variant: str) -> None:
        try:
            example.on_outputs(outputs, variant)
        except Exception:  # a bug: it costs this client, not the others of the batch
            log.exception("executable %s: an answer could not be given", self.name)
            example.on_outcome(Fail(example.id, "the answer could not be written"))

    def _fail(self, command: Execute, detail: str) -> None:
        self._driver.handle(ExecutionEnded(command.execution, Verdict.ERROR))
        for request in command.requests:
            what = f"executable {self.name}: {detail}"
            self._driver.resolve(request, Fail(request, what))


def _usable(hello: Hello, models: Mapping[str, Sequence[str]]) -> Capabilities:
    """Return the capabilities for models, by name with their variants; raises WireError."""
    offer = checked(hello, [name for variants in models.values() for name in variants])
    for variants in models.values():
        check_agreement(variants, hello.signatures)
    return offer


def _named(command: ActionCommand) -> str:
    """Return the device's name for an action's model."""
    model = command.variant if isinstance(command, Execute) else command.model
    return f"{type(command).__name__} of {model}"

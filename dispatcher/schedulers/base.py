"""The interface between the dispatcher core and a scheduling policy.

A policy observes changes (`on_queue`, `on_executor`) and chooses what runs next and where. It
mutates nothing but its own index: the core carries a choice out, then reports the change back.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from mypy_extensions import mypyc_attr

from dispatcher.state.executor import Executor
from dispatcher.state.executors import Executors
from dispatcher.state.partial import PartialExecution
from dispatcher.state.queues import ModelQueue
from roma.config.policy_file import Policy
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import Capabilities, Segment
from roma.domain.events import Reason
from roma.domain.model import Device, Request

TICK: Final = 1e-6
"""Seconds. A clock that woke a policy exactly when it asked must find that time reached, whatever
rounding did. Otherwise the policy would ask for the same instant again and again."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`
class RunChoice:
    """Run the first `count` requests of `model` as one batch on `executor`.

    `variant` is the variant to run, or the model itself if there is none. `youngest`: run those
    that arrived last instead.
    """

    executor: str
    model: str
    count: int
    variant: str | None
    youngest: bool

    def __init__(
        self,
        executor: str,
        model: str,
        count: int = 1,
        *,
        variant: str | None = None,
        youngest: bool = False,
    ) -> None:
        self.executor = executor
        self.model = model
        self.count = count
        self.variant = variant
        self.youngest = youngest


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`
class Batch:
    """Run exactly these waiting requests of `model` as one batch on a planned device.

    The batch may begin between `earliest` and `latest`. `variant` is the variant to run, or the
    model itself if there is none. `size` is the batch size that holds them, by default their
    number.

    `segment`: run only this part; if it is not the last, the requests wait again, as one of
    `PolicyView.partial`. `continues` is the execution among these that the segment goes on with,
    which must not be running: its device, requests, variant and size are given.
    """

    executor: str
    model: str
    requests: tuple[int, ...]
    earliest: float
    latest: float
    variant: str | None
    size: int | None
    segment: Segment | None
    continues: int

    def __init__(
        self,
        executor: str,
        model: str,
        requests: tuple[int, ...],
        earliest: float,
        latest: float,
        *,
        variant: str | None = None,
        size: int | None = None,
        segment: Segment | None = None,
        continues: int = 0,
    ) -> None:
        self.executor = executor
        self.model = model
        self.requests = requests
        self.earliest = earliest
        self.latest = latest
        self.variant = variant
        self.size = size
        self.segment = segment
        self.continues = continues


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Run these batches, or segments, at once on one planned device.

    They begin at the same moment, within the window of the first; one that cannot begin is left
    out. `seconds` is what they are predicted to take.
    """

    batches: tuple[Batch, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """Load `model`, or a variant, on a planned device that has the pages for it.

    The LOAD must begin by `latest`.
    """

    executor: str
    model: str
    latest: float


@dataclass(frozen=True, slots=True)
class UnloadChoice:
    """Unload `model`, which nothing uses, from a planned device."""

    executor: str
    model: str


@dataclass(frozen=True, slots=True)
class DropChoice:
    """Refuse these waiting requests of `model`."""

    model: str
    requests: tuple[int, ...]
    reason: Reason
    detail: str


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`
class WaitUntil:
    """Choose nothing now; ask again at this time, if nothing changes before."""

    time: float

    def __init__(self, time: float) -> None:
        self.time = time


Choice = RunChoice | Batch | BatchGroup | LoadChoice | UnloadChoice | DropChoice | WaitUntil | None


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The state that a policy may read."""

    queues: Mapping[str, ModelQueue]
    executors: Executors
    low_priority: Mapping[str, ModelQueue]
    """Queues of low-priority requests; only of models that received any."""
    learned: Policy | None
    """The trained policy of `qos-rl`."""
    partial: Mapping[int, PartialExecution]
    """Executions of which a segment has ended that is not the last, until the next one has."""

    def waits(self, model: str, request: int) -> bool:
        """Return True if a request still waits."""
        if request in self.queues[model].waiting:
            return True
        low = self.low_priority.get(model)
        return low is not None and request in low.waiting


@mypyc_attr(allow_interpreted_subclasses=True)  # a policy of yours works with the compiled build
class Scheduler(ABC):
    """A policy for one kind of device.

    What every decision reads of `options` is better kept in an attribute: compiled code reads
    pydantic's slowly.

    `request_aware`: the policy chooses requests, not only models, so it observes each request.
    """

    request_aware: ClassVar[bool] = False

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        self.state = state
        self.options = options

    @abstractmethod
    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Observe that a queue's content or its measured response time changed."""

    @abstractmethod
    def on_executor(self, executor: Executor, now: float) -> None:
        """Observe that an executor (of any device) changed its state, its room or its cores."""

    def on_request(self, request: Request, now: float) -> None:  # noqa: B027 - most need it not
        """Observe that a request waits, of either priority: it arrived, or came back unrun."""

    def on_memory(self, executor: Executor, model: str, now: float) -> None:  # noqa: B027 - likewise
        """Observe that a planned device loaded, is loading or no longer holds a model."""

    def refusal(self, executor: str, offer: Capabilities) -> str | None:
        """Return why a planned device with these capabilities cannot be used, or None."""
        return None

    @abstractmethod
    def choose(self, now: float) -> Choice:
        """Choose the next action, or None; called again after each choice was carried out."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GpuScheduler(Scheduler):
    """A policy that only picks the model: the GPU is the one that has been free the longest.

    Every GPU executable holds all models (paper §2.2), so any free GPU can run any pick. A model
    that a server could not load is on no GPU, and is not observed here.
    """

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._free: dict[str, None] = {}

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the GPUs that have room, ordered by how long they have been free."""
        if executor.spec.device is not Device.GPU:
            return
        if executor.has_room:
            self._free.setdefault(executor.spec.name)
        else:
            self._free.pop(executor.spec.name, None)

    def choose(self, now: float) -> Choice:
        """Pair the GPU that has been free longest with the picked model."""
        for gpu in self._free:
            model = self.pick(now)
            return None if model is None else RunChoice(gpu, model)
        return None

    @abstractmethod
    def pick(self, now: float) -> str | None:
        """Return the model whose head runs next; None if nothing waits."""

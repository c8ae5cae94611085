"""The closed vocabulary that crosses the dispatcher core's border.

The driver feeds `Event`s in and carries `Command`s out; nobody changes one, and every `match` over
them ends in `assert_never`, so a type checker lists what a new member still lacks. Those that every
request makes are not frozen and make themselves: see `roma.domain.model.Request`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from roma.domain.actions import Capabilities
from roma.domain.model import ExecutorSpec, ModelSpec, Request


class Result(StrEnum):
    """How an execution ended, as far as the promise is concerned."""

    OK = "ok"
    INVALID = "invalid"
    """Answered, but the client's input was wrong: says nothing about the model's speed."""
    FAILURE = "failure"
    """A broken promise, however fast it came, of a server that works and says what failed."""
    ERROR = "error"
    """A broken promise of a server that may not work: five in a row take it out of rotation."""
    TIMEOUT = "timeout"
    """No answer within `gateway.backend_timeout`; the executable may still be computing."""


class Reason(StrEnum):
    """Which rule rejected a request."""

    QUEUE_FULL = "queue_full"
    PREDICTED_LATE = "predicted_late"
    """At admission, or at the head of the queue: predicted to miss the promise (of a mean, and of
    low priority: the deadline)."""
    DEADLINE = "deadline"
    """In the queue: age plus predicted service exceeds the deadline."""
    NO_EXECUTABLE = "no_executable"
    TOO_LARGE = "too_large"
    """At admission: alone, predicted to take longer than is promised, and far longer than usual."""


# Events


@dataclass(slots=True, init=False)
class RequestArrived:
    """A client asks for an inference."""

    request: Request

    def __init__(self, request: Request) -> None:
        self.request = request


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client went away; a request that already ended is ignored."""

    request: int


@dataclass(slots=True, init=False)
class ExecutionEnded:
    """An executable answered or failed; an execution already given up is ignored.

    `duration` is what a planned device measured itself, in seconds.
    """

    execution: int
    result: Result
    duration: float | None

    def __init__(self, execution: int, result: Result, duration: float | None = None) -> None:
        self.execution = execution
        self.result = result
        self.duration = duration


@dataclass(frozen=True, slots=True)
class ExecutionMissed:
    """A planned device could not begin an execution in its window: it never ran."""

    execution: int


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """A planned device has loaded a model, or has not; one already given up is ignored.

    `duration` in seconds; None if nothing was copied. `is_missed`: it could not begin in time,
    which says nothing of the next one.
    """

    load: int
    is_loaded: bool
    duration: float | None = None
    is_missed: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionUnreachable:
    """The executable never received the requests: they may run elsewhere, once.

    `gone` if it refused the connection; if nobody answered, a packet may have been lost.
    """

    execution: int
    gone: bool = True


@dataclass(frozen=True, slots=True)
class ExecutorAdded:
    """A new executor exists; it takes work once it is ready."""

    spec: ExecutorSpec


@dataclass(frozen=True, slots=True)
class ExecutorReady:
    """The executable is loaded, warmed up and reachable, or so again after a suspicion.

    `offer` is what a planned device says of itself.
    """

    executor: str
    offer: Capabilities | None = None


@dataclass(frozen=True, slots=True)
class ExecutorSuspected:
    """An answer broke off: the executable takes nothing more until it proves ready or lost."""

    executor: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executable is gone; what it was running has failed."""

    executor: str


@dataclass(frozen=True, slots=True)
class ExecutorRemoved:
    """The executor is no longer part of the deployment; what it was running has failed."""

    executor: str


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A new model exists; its executors follow.

    GPUs hold every model (paper §2.2): they are removed before, and added with it after.
    """

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class ModelRemoved:
    """The model is no longer served; what still waits is refused, what runs has failed."""

    model: str


@dataclass(frozen=True, slots=True)
class CoresApplied:
    """The supervisor confirmed the cores an executable has now.

    `part` is the share of its slots that this dispatcher may take: others send to it as well.
    """

    executor: str
    cores: float
    part: float = 1.0


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that `next_wakeup()` named has come."""


ExecutorEvent = (
    ExecutorAdded
    | ExecutorReady
    | ExecutorSuspected
    | ExecutorLost
    | ExecutorRemoved
    | CoresApplied
)

ModelEvent = ModelAdded | ModelRemoved

Event = (
    RequestArrived
    | RequestCancelled
    | ExecutionEnded
    | ExecutionMissed
    | ExecutionUnreachable
    | LoadEnded
    | ExecutorEvent
    | ModelEvent
    | Woken
)


# Commands


@dataclass(slots=True, init=False)
class Execute:
    """Run these requests of one model as one batch on one executor.

    A planned device begins it within `window`, a first and a last point in time, or not at all;
    it knows the model as `variant`, and runs a batch of `size`, which may be more than there are
    requests.
    """

    execution: int
    executor: str
    model: str
    requests: tuple[int, ...]
    window: tuple[float, float]
    variant: str
    size: int

    def __init__(
        self,
        execution: int,
        executor: str,
        model: str,
        requests: tuple[int, ...],
        # Written out: mypyc takes a Final of two floats for one that was never set.
        window: tuple[float, float] = (0.0, math.inf),
        *,
        variant: str | None = None,
        size: int | None = None,
    ) -> None:
        self.execution = execution
        self.executor = executor
        self.model = model
        self.requests = requests
        self.window = window
        self.variant = model if variant is None else variant
        self.size = len(requests) if size is None else size


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Copy a model's weights to a planned device, beginning until `latest`, or not at all."""

    load: int
    executor: str
    model: str
    latest: float


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Free the memory of a model on a planned device."""

    executor: str
    model: str


@dataclass(frozen=True, slots=True)
class Abort:
    """This execution's executor is lost, or its model removed; an answer is ignored."""

    execution: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse a request; `detail` has the numbers.

    `retry_after` is the predicted wait in seconds, None if waiting would not help.
    """

    request: int
    reason: Reason
    retry_after: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class Fail:
    """A request's execution failed without an answer."""

    request: int
    detail: str


Command = Execute | LoadModel | UnloadModel | Abort | Reject | Fail

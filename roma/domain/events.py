"""The closed vocabulary that crosses the dispatcher core's border.

The driver feeds `Event`s in and carries `Command`s out. Both are immutable by convention. Every
`match` over them ends in `assert_never`, so a type checker lists the places that do not yet handle
a new member. Members created for every request are not frozen dataclasses and have a hand-written
constructor: see `roma.domain.model.Request`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from roma.domain.actions import Capabilities, ExecutionPart
from roma.domain.model import ExecutorSpec, ModelSpec, Request


class Result(StrEnum):
    """Result of an execution with respect to the promise."""

    OK = "ok"
    INVALID = "invalid"
    """Answered, but the client's input was wrong: no evidence of the model's speed."""
    FAILURE = "failure"
    """A broken promise, however fast the answer: the server works and reports a failure."""
    ERROR = "error"
    """A broken promise of a server that may be broken: five in a row take it out of rotation."""
    TIMEOUT = "timeout"
    """No answer within `gateway.backend_timeout`; the executable may still be computing."""


class Reason(StrEnum):
    """Rule that rejected a request."""

    QUEUE_FULL = "queue_full"
    PREDICTED_LATE = "predicted_late"
    """At admission, or at the head of the queue: predicted to miss the promise. For a promise on
    the mean and for low priority: predicted to miss the deadline."""
    DEADLINE = "deadline"
    """In the queue: age plus predicted service exceeds the deadline."""
    NO_EXECUTABLE = "no_executable"
    TOO_LARGE = "too_large"
    """At admission: predicted to take longer than promised even alone, and far longer than
    usual."""


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
    """An executable answered or failed; an execution that was already abandoned is ignored.

    `duration` is the time that a planned device measured itself, in seconds.
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
    """A planned device could not begin an execution within its window: it never ran."""

    execution: int


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """A planned device finished or failed a load; a load that was already abandoned is ignored.

    `duration` in seconds; None if nothing was copied. `is_missed`: it could not begin in time,
    which is no evidence about the next load.
    """

    load: int
    is_loaded: bool
    duration: float | None = None
    is_missed: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionUnreachable:
    """The executable never received the requests: they may run elsewhere, once.

    `gone` if it refused the connection. If there was no answer, a packet may have been lost.
    """

    execution: int
    gone: bool = True


@dataclass(frozen=True, slots=True)
class ExecutorAdded:
    """A new executor exists; it takes work once it is ready."""

    spec: ExecutorSpec


@dataclass(frozen=True, slots=True)
class ExecutorReady:
    """The executable is loaded, warmed up and reachable, or is so again after a suspicion.

    `offer` holds the capabilities that a planned device reported.
    """

    executor: str
    offer: Capabilities | None = None


@dataclass(frozen=True, slots=True)
class ExecutorSuspected:
    """An answer broke off: the executable gets no more work until it is known ready or down."""

    executor: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executable is down; its running executions have failed."""

    executor: str


@dataclass(frozen=True, slots=True)
class ExecutorRemoved:
    """The executor left the deployment; its running executions have failed."""

    executor: str


@dataclass(frozen=True, slots=True)
class ModelsAssigned:
    """A planned device serves these models from now on; what it runs goes on."""

    executor: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelsMissing:
    """The server of an executable has none of these of its models; () once it has all.

    It serves the others: one model that cannot be loaded costs them nothing.
    """

    executor: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A new model exists; its executors follow.

    GPUs hold every model (paper §2.2): planned devices are assigned the new one, others are removed
    first, then added again with it.
    """

    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class ModelRemoved:
    """The model is no longer served: waiting requests are refused, running ones have failed."""

    model: str


def soonest_tick(period: float) -> float:
    """Return the least seconds between two ticks of a control period, for cores that are needed."""
    return min(0.25 * period, 0.1)


@dataclass(frozen=True, slots=True)
class CoresApplied:
    """The supervisor confirmed the cores that an executable has now.

    `part` is the share of its slots that this dispatcher may use: others send to it as well. `cost`
    is the core-seconds of a request there, None if not known better than before.
    """

    executor: str
    cores: float
    part: float = 1.0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Woken:
    """The time returned by `next_wakeup()` has come."""


ExecutorEvent = (
    ExecutorAdded
    | ExecutorReady
    | ExecutorSuspected
    | ExecutorLost
    | ExecutorRemoved
    | ModelsAssigned
    | ModelsMissing
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

    A planned device begins it within `window` (earliest and latest point in time) or not at all.
    The device knows the model as `variant` and runs a batch of `size`, which may exceed the number
    of requests. `part` is None for a whole model that runs alone; requests of a segment that is not
    the last are not answered by it.
    """

    execution: int
    executor: str
    model: str
    requests: tuple[int, ...]
    window: tuple[float, float]
    variant: str
    size: int
    part: ExecutionPart | None

    def __init__(
        self,
        execution: int,
        executor: str,
        model: str,
        requests: tuple[int, ...],
        # Written out: mypyc treats a Final of two floats as never set.
        window: tuple[float, float] = (0.0, math.inf),
        *,
        variant: str | None = None,
        size: int | None = None,
        part: ExecutionPart | None = None,
    ) -> None:
        self.execution = execution
        self.executor = executor
        self.model = model
        self.requests = requests
        self.window = window
        self.variant = model if variant is None else variant
        self.size = len(requests) if size is None else size
        self.part = part

    @property
    def is_last(self) -> bool:
        """True if its end answers the requests: no other segment follows."""
        return self.part is None or self.part.is_last


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Copy a model's weights to a planned device, beginning by `latest` or not at all."""

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
class DiscardResults:
    """Forget on a planned device what the segment of an execution left: nobody waits for it."""

    executor: str
    model: str
    execution: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Abandon an execution whose executor is down or whose model was removed; ignore its answer."""

    execution: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse a request; `detail` has the numbers behind the decision.

    `retry_after` is the predicted wait in seconds, None if waiting would not help.
    """

    request: int
    reason: Reason
    retry_after: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail a request whose execution ended without an answer."""

    request: int
    detail: str


@dataclass(frozen=True, slots=True)
class CoresNeeded:
    """A model's queue has outgrown its cores since the last control period: decide again now.

    A hint: without it the cores follow at the end of the period.
    """

    model: str


Command = Execute | LoadModel | UnloadModel | DiscardResults | Abort | Reject | Fail | CoresNeeded

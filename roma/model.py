"""What a model is promised and what runs it: the nouns that every part of ROMA shares.

Times are seconds, CPU is cores; both are floats. Everything here is immutable.
"""

from dataclasses import dataclass
from enum import StrEnum

from roma.variants import Terms, Variant


class Statistic(StrEnum):
    """Which statistic of the response times an SLA bounds."""

    MEAN = "mean"
    P95 = "p95"
    P99 = "p99"
    EACH = "each"


class Priority(StrEnum):
    """Which requests of a model go first."""

    INTERACTIVE = "interactive"
    BATCH = "batch"
    """Runs in what interactive requests leave over, and has no promise."""


class Device(StrEnum):
    """What an executable computes on."""

    CPU = "cpu"
    GPU = "gpu"


_INTERACTIVE = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Sla:
    """A promise on response time (queue plus execution).

    `alpha` in (0, 1] sets the controller's target below the promise (paper §3, eq. 2).
    """

    response_time: float
    statistic: Statistic = Statistic.MEAN
    alpha: float = 0.8

    @property
    def set_point(self) -> float:
        """The response time that schedulers and controllers aim for: R° = α·SLA."""
        return self.alpha * self.response_time


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, its promise and the bounds of its queue.

    `deadline` is the longest useful response time, in seconds after arrival; `max_waiting` bounds
    the queue by count. `variants` are what a request of it may be run by, the most accurate first;
    none: the model itself.
    """

    name: str
    sla: Sla
    deadline: float
    max_waiting: int = 1000
    cost: float | None = None
    variants: tuple[Variant, ...] = ()

    @property
    def served_as(self) -> tuple[str, ...]:
        """The names by which exclusive devices have it: its variants', or its own."""
        return tuple([variant.name for variant in self.variants]) or (self.name,)


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """An executable as the dispatcher sees it: where it runs and what it can run.

    `threads` is the parallelism that one request can use; `cores` the applied cores at start;
    `in_flight` fixes the in-flight limit of a CPU executable, None lets it follow the cores.
    `is_exclusive`: it takes actions with windows and reports their times (`roma.actions`).
    """

    name: str
    device: Device
    models: tuple[str, ...]
    worker: str = "local"
    threads: int = 1
    cores: float = 1.0
    in_flight: int | None = None
    is_exclusive: bool = False


@dataclass(slots=True, init=False)
class Request:
    """One inference request: `arrived` and `deadline` are points on the core's clock.

    Nobody changes one. It is not frozen, and makes itself, because each request makes it and three
    or four events and commands: frozen, compiled ones cost thirty times as much.

    `strict`: the deadline is the client's own. Nobody waits for an answer after it, so what still
    runs then is given up; the model's own deadline lets it end.
    """

    id: int
    model: str
    arrived: float
    deadline: float
    strict: bool
    priority: Priority
    terms: Terms | None

    def __init__(
        self,
        id: int,  # noqa: A002 - the field's name
        model: str,
        arrived: float,
        deadline: float,
        *,
        strict: bool = False,
        priority: Priority = _INTERACTIVE,
        terms: Terms | None = None,
    ) -> None:
        self.id = id
        self.model = model
        self.arrived = arrived
        self.deadline = deadline
        self.strict = strict
        self.priority = priority
        self.terms = terms

"""Models, SLAs, executors and requests: the nouns that every part of ROMA shares.

Times are seconds, CPU is cores; both are floats. Everything here is immutable.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from roma.domain.variants import RequestOptions, Variant


class Statistic(StrEnum):
    """Statistic of the response times that a control law sees beside an SLA."""

    MEAN = "mean"
    P95 = "p95"
    P99 = "p99"
    EACH = "each"


class Sharing(StrEnum):
    """Rule for sharing a worker's cores when they are too few for all demands."""

    MAX_MIN = "max_min"
    PROPORTIONAL = "proportional"


class Priority(StrEnum):
    """Priority of a request within its model's queue."""

    INTERACTIVE = "interactive"
    LOW = "low"
    """Runs on the capacity that interactive requests leave free; has no promise."""

    @classmethod
    def _missing_(cls, value: object) -> "Priority | None":
        """Accept `batch`, the name of `low` until 0.2."""
        return cls.LOW if value == "batch" else None


class Device(StrEnum):
    """Kind of device that an executable computes on."""

    CPU = "cpu"
    GPU = "gpu"


_INTERACTIVE = Priority.INTERACTIVE


BUDGETS: Final = {Statistic.P95: 0.05, Statistic.P99: 0.01, Statistic.EACH: 0.001}
"""Share of requests that may be late, for the statistics that imply one."""

WIDE_BUDGET: Final = 0.03
"""From this budget on, control uses the 95th percentile; below it, the 99th."""

MEAN_ALPHA: Final = 0.8
"""Set point for a promise on the mean and for `each`, as a share of the promise (paper §5)."""

BUDGET_ALPHA: Final = 0.5
"""Set point for every other promise: if the mean response time is at the set point, few requests
exceed twice that."""


@dataclass(frozen=True, slots=True)
class Sla:
    """A promise on response time (queue plus execution).

    All requests except a share of `budget` are answered within `response_time`; a promise on the
    mean has no budget. `statistic` is the input of the control law; `alpha` in (0, 1] sets its
    target below the promise (paper §3, eq. 2). `own_budget` holds a budget that no statistic
    implies.
    """

    response_time: float
    statistic: Statistic = Statistic.MEAN
    alpha: float = MEAN_ALPHA
    own_budget: float | None = None

    @staticmethod
    def within(response_time: float, budget: float) -> "Sla":
        """Return the promise that all requests except a share of `budget` are in time."""
        statistic = Statistic.P95 if budget >= WIDE_BUDGET else Statistic.P99
        return Sla(response_time, statistic, BUDGET_ALPHA, budget)

    @property
    def budget(self) -> float | None:
        """The share of requests that may be late, in (0, 0.5]; None for a promise on the mean."""
        return BUDGETS.get(self.statistic) if self.own_budget is None else self.own_budget

    @property
    def sheds_late_requests(self) -> bool:
        """True if a request that cannot be in time is dropped in favour of those that can.

        A late answer spends as much of the budget as a refusal, and it also spends cores. With a
        promise on the mean a late answer costs less than a refusal; with a promise on each request
        the deadline is the promise.
        """
        return self.budget is not None and self.statistic is not Statistic.EACH

    @property
    def set_point(self) -> float:
        """The response time that schedulers and controllers aim for: R° = α·SLA."""
        return self.alpha * self.response_time


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, its promise and the bounds of its queue.

    `deadline` is the longest useful response time, in seconds after arrival; `max_waiting` bounds
    the queue by count. `variants` lists the variants that may run its requests, most accurate
    first; if empty, only the model itself may.
    """

    name: str
    sla: Sla
    deadline: float
    max_waiting: int = 1000
    cost: float | None = None
    variants: tuple[Variant, ...] = ()

    @property
    def served_as(self) -> tuple[str, ...]:
        """The names under which planned devices hold it: those of its variants, or its own."""
        return tuple([variant.name for variant in self.variants]) or (self.name,)


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """An executable as the dispatcher sees it: where it runs and what it can run.

    `threads` is the parallelism that one request can use, `cores` the applied cores at start,
    `most_cores` the most that a controller may grant (0: no more than are applied), which
    `dispatchers` share. `in_flight` fixes the in-flight limit of a CPU executable; None lets it
    follow the cores.
    `is_planned`: it takes actions with windows and reports their times (`roma.domain.actions`).
    """

    name: str
    device: Device
    models: tuple[str, ...]
    worker: str = "local"
    threads: int = 1
    cores: float = 1.0
    in_flight: int | None = None
    is_planned: bool = False
    most_cores: float = 0.0
    dispatchers: int = 1


def slot_count(cores: float, threads: int, in_flight: int | None) -> int:
    """Return the in-flight limit of a CPU executable with these cores; see `ExecutorSpec`."""
    return in_flight or max(1, math.ceil(cores / threads))


@dataclass(slots=True, init=False)
class Request:
    """An inference request: `arrived` and `deadline` are points on the core's clock.

    Immutable by convention. It is not a frozen dataclass and has a hand-written constructor,
    because each request creates one of these and three or four events and commands: compiled,
    frozen ones cost thirty times as much.

    `size` is the uncompressed size of its body in bytes; 0 if unknown.

    `strict`: the deadline is the client's own, and no one waits for an answer after it. A request
    that is still running then is answered with 504 and keeps its slot until it ends. After the
    model's deadline a running request is still answered.
    """

    id: int
    model: str
    arrived: float
    deadline: float
    strict: bool
    priority: Priority
    terms: RequestOptions | None
    size: int

    def __init__(
        self,
        id: int,  # noqa: A002 - the field's name
        model: str,
        arrived: float,
        deadline: float,
        *,
        strict: bool = False,
        priority: Priority = _INTERACTIVE,
        terms: RequestOptions | None = None,
        size: int = 0,
    ) -> None:
        self.id = id
        self.model = model
        self.size = size
        self.arrived = arrived
        self.deadline = deadline
        self.strict = strict
        self.priority = priority
        self.terms = terms

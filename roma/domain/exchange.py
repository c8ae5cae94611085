"""Messages that a supervisor and a dispatcher exchange once per control period.

Counts are cumulative since the dispatcher started (`epoch` identifies that start), so a lost
exchange loses no data: the next one covers both periods. Times are seconds.

Between two exchanges a supervisor waits to hear that a queue has outgrown its cores.
"""

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from roma.domain.errors import ExchangeError

LEAST_CORES: Final = 0.001
MOST_CORES: Final = 4096.0
"""Cores that an executable may have in a message."""


@dataclass(frozen=True, slots=True)
class ExecutorReading:
    """Supervisor to dispatcher: the kernel's accounting of one executable.

    `usage` is cumulative core-seconds. `throttled` is the share of quota periods in the last
    control period in which it ran out of quota, None if unknown. `share` is the part of `applied`
    that this dispatcher may count on, because several dispatchers may send to the same executable.
    `cost` is the measured core-seconds of a request, None if unknown.
    """

    executor: str
    applied: Annotated[float, Field(ge=LEAST_CORES, le=MOST_CORES)]
    usage: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    throttled: Annotated[float, Field(ge=0, le=1)] | None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True)
class SupervisorId:
    """A supervisor's process; `started` distinguishes it from earlier processes with its pid."""

    host: Annotated[str, Field(max_length=256)]
    pid: int
    started: Annotated[str, Field(max_length=256)]

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host}"


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """A supervisor's side of an exchange.

    `hello`: nothing was applied yet. `replaces` is a supervisor that the sender knows has ended.
    """

    worker: str
    executors: tuple[ExecutorReading, ...]
    supervisor: SupervisorId | None = None
    replaces: SupervisorId | None = None
    hello: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeRefusal:
    """Dispatcher to supervisor: `supervisor` is the one that currently controls this worker."""

    error: str
    supervisor: SupervisorId


def silence(period: float) -> float:
    """Return the seconds of silence after which a supervisor is presumed to have ended.

    At least five control periods and five seconds: a busy machine delays more than one tick.
    """
    return max(5.0, 5 * period)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Dispatcher to supervisor: measurements of one model.

    `response_time` is the statistic that control uses over the window, None if nothing was answered
    in it. `mean_time` is the mean over the same window.

    `oldest_age` is that of waiting and running requests; those of low priority may wait, and have
    none. `in_flight` counts them.

    `completed_…` count all answers, `invalid` the answers that refused the client's input, `late`
    the answers that came after the promise. `rejected` counts rejections by reason,
    `rejected_by_client` the rejections caused only by the client's own deadline or size.
    `cancelled_late` counts the cancelled requests that could no longer be in time.
    """

    model: str
    arrivals: int
    completed_cpu: int
    completed_gpu: int
    failed: int
    invalid: int
    cancelled: int
    late: int
    rejected: dict[str, int]
    waiting: int
    in_flight: int
    oldest_age: float
    response_time: float | None
    mean_time: float | None
    cancelled_late: int = 0
    rejected_by_client: int = 0

    @property
    def refused(self) -> int:
        """Rejected requests, except those that the client itself caused."""
        return sum(self.rejected.values()) - self.rejected_by_client

    @property
    def broken(self) -> int:
        """Requests whose promise was broken: late, refused, failed, or given up when too late."""
        return self.late + self.refused + self.failed + self.cancelled_late

    @property
    def ended(self) -> int:
        """Requests that count for the promise, kept or broken.

        Requests whose outcome the client alone caused do not count: a refused input, a request
        cancelled while it could still be in time, or one rejected for the client's own deadline or
        size.
        """
        answered = self.completed_cpu + self.completed_gpu - self.invalid
        return answered + self.refused + self.failed + self.cancelled_late


LOADING: Final = "loading"
"""State of an executor that was not ready yet, or lacks a model."""

LIVE: Final = ("idle", "busy", "suspected")
"""States of an executor whose server is loaded and reachable, as far as is known."""


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """Dispatcher to supervisor: the dispatcher's measurements of one executable."""

    executor: str
    state: str
    in_flight: int
    completed: int


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """A dispatcher's side of an exchange."""

    epoch: str
    models: tuple[ModelReport, ...]
    executors: tuple[ExecutorReport, ...]


QUIET = 20.0
"""Seconds for which a supervisor waits, in one call, to hear that cores are needed."""

T = TypeVar("T")

REQUEST = TypeAdapter(ExchangeRequest)
REPLY = TypeAdapter(ExchangeReply)
REFUSAL = TypeAdapter(ExchangeRefusal)


def parse(adapter: TypeAdapter[T], body: bytes) -> T:
    """Parse a message; raise `ExchangeError` naming the invalid field."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc']) or 'body'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ExchangeError("; ".join(faults)) from error

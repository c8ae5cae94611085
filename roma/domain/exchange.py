"""What a supervisor and a dispatcher tell each other, once per control period.

Counts are cumulative since the dispatcher started (`epoch` names that start), so a lost exchange
loses nothing: the next one covers both periods. Times are seconds.
"""

from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from roma.domain.errors import ExchangeError


@dataclass(frozen=True, slots=True)
class ExecutorReading:
    """Supervisor to dispatcher: what the kernel says of one executable.

    `usage` is cumulative core-seconds; `throttled` the share of quota periods of the last control
    period in which it ran out of quota. `share` is the part of `applied` that this dispatcher may
    count on: others send to the same executable, and none of them may believe it to be his alone.
    """

    executor: str
    applied: Annotated[float, Field(ge=0.001, le=4096)]
    usage: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    throttled: Annotated[float, Field(ge=0, le=1)]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


@dataclass(frozen=True, slots=True)
class SupervisorId:
    """A supervisor's process; `started` tells it from all others that had its pid."""

    host: Annotated[str, Field(max_length=256)]
    pid: int
    started: Annotated[str, Field(max_length=256)]

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host}"


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """A supervisor's side of an exchange.

    `hello`: nothing was applied yet. `replaces` is the supervisor that the sender knows to have
    ended.
    """

    worker: str
    executors: tuple[ExecutorReading, ...]
    supervisor: SupervisorId | None = None
    replaces: SupervisorId | None = None
    hello: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeRefusal:
    """Dispatcher to supervisor: `supervisor` is the one that speaks for this worker."""

    error: str
    supervisor: SupervisorId


def silence(period: float) -> float:
    """Return the seconds after which a supervisor that is not heard has ended, for all we know.

    Five control periods, and five seconds: a busy machine delays more than one tick.
    """
    return max(5.0, 5 * period)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Dispatcher to supervisor: one model.

    `response_time` is the statistic that control uses over the window, None if nothing was answered
    in it.
    `mean_time` is the mean over the same window. `completed_…` count every answer, `invalid` those
    of them that refused the client's input, `late` those that came after the promise; `rejected`
    counts by reason, `rejected_by_client` those of them for which their client's own deadline or
    size alone is the reason, `cancelled_late` those of `cancelled` that could not be in time any
    more.
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
        """Requests that were rejected, but for those for which their client is the reason."""
        return sum(self.rejected.values()) - self.rejected_by_client

    @property
    def broken(self) -> int:
        """Requests whose promise was broken: late, refused, failed, or given up when too late."""
        return self.late + self.refused + self.failed + self.cancelled_late

    @property
    def ended(self) -> int:
        """Requests that count for the promise, kept or broken.

        What the client alone caused does not: an input that was refused, a request that it took
        back, or whose own deadline passed, while there was time.
        """
        answered = self.completed_cpu + self.completed_gpu - self.invalid
        return answered + self.refused + self.failed + self.cancelled_late


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """Dispatcher to supervisor: one executable, as the dispatcher sees it."""

    executor: str
    state: str
    in_flight: int
    completed: int


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """One dispatcher's side of an exchange."""

    epoch: str
    models: tuple[ModelReport, ...]
    executors: tuple[ExecutorReport, ...]


T = TypeVar("T")

REQUEST = TypeAdapter(ExchangeRequest)
REPLY = TypeAdapter(ExchangeReply)
REFUSAL = TypeAdapter(ExchangeRefusal)


def parse_request(body: bytes) -> ExchangeRequest:
    """Parse a supervisor's message; raise `ExchangeError` naming the field at fault."""
    return _parse(REQUEST, body)


def parse_reply(body: bytes) -> ExchangeReply:
    """Parse a dispatcher's message; raise `ExchangeError` naming the field at fault."""
    return _parse(REPLY, body)


def parse_refusal(body: bytes) -> ExchangeRefusal:
    """Parse a dispatcher's 409; raise `ExchangeError` naming the field at fault."""
    return _parse(REFUSAL, body)


def _parse(adapter: TypeAdapter[T], body: bytes) -> T:
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ExchangeError("; ".join(faults)) from error

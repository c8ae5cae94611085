"""The nouns of the board: what is known of a worker, an executable and a model now.

They cross to browsers and terminals as JSON, field by field.
"""

from dataclasses import dataclass
from enum import StrEnum


class ModelState(StrEnum):
    """How a model is doing."""

    DOWN = "down"
    """Nothing can serve it."""
    LATE = "late"
    TIGHT = "tight"
    """Between the set point and the SLA."""
    OK = "ok"
    IDLE = "idle"

    @property
    def rank(self) -> int:
        """The order of attention: worst first."""
        return list(ModelState).index(self)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, as its supervisor tells; numbers are absent while it does not answer.

    `silent_for` in seconds, `eta` the share of what is wanted that the worker has (None: nothing is
    wanted), `mode` is `control`, `dry-run` or `observe-only: <reason>`. `contended` if others
    keep one of its executables from the host's CPUs. Of `controllable` executables `controlled`
    have their cores set; `uncontrolled` is why none has.
    """

    worker: str
    url: str
    answers: bool
    silent_for: float = 0.0
    error: str = ""
    mode: str = ""
    capacity: float | None = None
    demanded: float | None = None
    applied: float | None = None
    used: float | None = None
    eta: float | None = None
    contended: bool = False
    controllable: int = 0
    controlled: int = 0
    uncontrolled: str = ""
    ticks: int | None = None
    missed_ticks: int | None = None
    jitter_p99: float | None = None


@dataclass(frozen=True, slots=True)
class ExecutableRow:
    """An executable: state and requests from the dispatcher, cores from its supervisor.

    `limit` names what keeps it from the cores its law asks for, `contention` who has the CPUs where
    that is it; `why` is the law's reason, `reason` why it cannot serve, where that is known. Cores
    are None where nobody controls them (a GPU, a foreign server) or the supervisor is silent.
    """

    executable: str
    worker: str
    device: str
    state: str
    in_flight: int
    reason: str = ""
    demand: float | None = None
    allocation: float | None = None
    applied: float | None = None
    observed: float | None = None
    used: float | None = None
    throttled: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    limit: str = "none"
    failure: str | None = None
    contention: str = ""
    why: str = ""

    @property
    def live(self) -> bool:
        """Whether it is loaded and reachable."""
        return self.state in ("idle", "busy")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model now. Seconds, requests per second, cores, shares.

    `error` is how far the response time, or the age of what waits, is above (+) or below (-) the
    SLA, as a share of it. `ended` and `broken` are requests per second: those that count for the
    promise, and of them those that broke it; `late_share` is their share in the last minute. At
    most a share of `budget` may, None of a promise on the mean; `response_time` is the `statistic`
    that control laws see.
    """

    model: str
    state: ModelState
    why: str
    statistic: str
    budget: float | None
    sla: float
    set_point: float
    response_time: float | None
    error: float | None
    arrivals: float
    ended: float
    broken: float
    gpu_share: float | None
    late_share: float | None
    waiting: int
    in_flight: int
    oldest_age: float
    demanded: float | None
    allocated: float | None
    applied: float | None
    used: float | None
    throttled: float | None
    executables: list[ExecutableRow]


@dataclass(frozen=True, slots=True)
class DashboardView:
    """Everything at `at` (seconds since the epoch), the model worst off first."""

    name: str
    at: float
    workers: list[Worker]
    models: list[ModelRow]

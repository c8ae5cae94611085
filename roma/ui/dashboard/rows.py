"""Rows of the dashboard: the current state of a worker, an executable and a model.

They are sent to browsers and terminals as JSON, field by field.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from roma.domain.exchange import LIVE


class ModelState(StrEnum):
    """State of a model."""

    DOWN = "down"
    """Nothing can serve it."""
    LATE = "late"
    TIGHT = "tight"
    """Between the set point and the SLA."""
    OK = "ok"
    IDLE = "idle"

    @property
    def rank(self) -> int:
        """Rank for sorting by severity, worst first."""
        return list(ModelState).index(self)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, as its supervisor reports it; numbers are absent while it does not answer.

    `silent_for` is in seconds. `eta` is the ratio of the worker's cores to the demanded cores
    (None: no demand). `mode` is `control`, `dry-run` or `observe-only: <reason>`. `contended`:
    other processes keep one of its executables from the host's CPUs. Of `controllable` executables
    `controlled` have their cores set; `uncontrolled` is the reason if none has.
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

    `limit` names the limit that keeps it from the cores its law demands; `contention` names the
    processes that use the CPUs, if that is the limit. `why` is the law's reason; `reason` is the
    reason why it cannot serve, if known. Cores are None if they are not controlled (a GPU, a
    foreign server) or if the supervisor is silent.
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
        """True if the executable is loaded and reachable."""
        return self.state in LIVE


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Current state of one model, in seconds, requests per second, cores and shares.

    `error` is the distance of the response time, or of the oldest waiting request's age, above (+)
    or below (-) the SLA, as a share of the SLA. `ended` and `broken` are requests per second that
    count for the promise, and those of them that broke it; `late_share` is the share of broken ones
    among the `ended_lately` of the last minute. `budget` is the largest share that may be broken,
    None for a promise on the mean. `response_time` is the `statistic` that control laws use.
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
    ended_lately: float
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
    """Snapshot of the dashboard at `at` (seconds since the epoch); the worst model first."""

    name: str
    at: float
    workers: list[Worker]
    models: list[ModelRow]
    links: dict[str, str] = field(default_factory=dict)
    """Pages beside this one, by name (`gateway.links`)."""

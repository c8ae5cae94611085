"""Results of a simulation, as plain numbers: for tables, JSON and plots."""

from dataclasses import dataclass, field

from dispatcher.state.queues import ModelQueue
from roma.domain.model import Device
from roma.lab.sim.tally import Tally


@dataclass(frozen=True, slots=True)
class TickSample:
    """An executable at one control tick; times in seconds, rates per second, CPU in cores."""

    time: float
    executable: str
    applied: float
    response_time: float | None
    throughput: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """A model. Times in seconds.

    `mean`, `deviation`, `worst` and the percentiles are over answered requests; `window_…` over
    the means of each second (the paper's measure), `windows_over` counts those above the SLA.
    """

    model: str
    sla: float
    arrivals: int
    answered: int
    on_gpu: int
    late: int
    rejected: int
    failed: int
    mean: float
    deviation: float
    worst: float
    p50: float | None
    p95: float | None
    p99: float | None
    window_mean: float
    window_deviation: float
    window_worst: float
    windows: int
    windows_over: int
    series: tuple[tuple[int, float], ...] = ()
    quality: float | None = None
    """Mean value of a request, from 0 to 1 (docs/howto/variants.md); None without variants."""

    @property
    def violations(self) -> int:
        """Requests whose promise was broken: late, refused or failed."""
        return self.late + self.rejected + self.failed

    @property
    def late_share(self) -> float:
        """Share of its requests that were late, refused or failed."""
        return self.violations / max(1, self.arrivals)

    @classmethod
    def of(cls, model: str, tally: Tally, queue: ModelQueue) -> "ModelResult":
        """Return the result of a model; `queue` is the dispatcher's."""
        response, windows, completed = tally.response, tally.windows, queue.completed
        quality = queue.quality / max(1, tally.arrivals) if queue.accuracy else None
        return cls(
            model=model,
            sla=tally.sla,
            arrivals=tally.arrivals,
            answered=response.count,
            on_gpu=completed.get(Device.GPU, 0),
            late=tally.late,
            rejected=sum(tally.rejected.values()),
            failed=tally.failed,
            mean=response.mean,
            deviation=response.deviation,
            worst=response.worst,
            p50=tally.quantile(0.50),
            p95=tally.quantile(0.95),
            p99=tally.quantile(0.99),
            window_mean=windows.mean,
            window_deviation=windows.deviation,
            window_worst=windows.worst,
            windows=windows.count,
            windows_over=tally.windows_over,
            series=tuple(tally.series or ()),
            quality=quality,
        )


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A whole run; `allocatable` is what `static` max would have granted all the time, in cores."""

    seconds: float
    allocatable: float
    core_seconds: float
    used_seconds: float
    models: tuple[ModelResult, ...]
    samples: tuple[TickSample, ...] = field(default=(), repr=False)

    @property
    def arrivals(self) -> int:
        """Requests of all models."""
        return sum(m.arrivals for m in self.models)

    @property
    def late_share(self) -> float:
        """Share of all requests that were late, refused or failed."""
        return sum(m.violations for m in self.models) / max(1, self.arrivals)

    @property
    def rejected_share(self) -> float:
        """Share of all requests that were refused."""
        return sum(m.rejected for m in self.models) / max(1, self.arrivals)

    @property
    def windows_over(self) -> int:
        """Model-seconds whose mean response time was above the SLA: the paper's V."""
        return sum(m.windows_over for m in self.models)

    @property
    def mean(self) -> float:
        """Mean response time of all answered requests."""
        answered = sum(m.answered for m in self.models)
        return sum(m.mean * m.answered for m in self.models) / max(1, answered)

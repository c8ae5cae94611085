"""The supervisor's side of the metrics: cores asked for, granted, confirmed and used."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from roma.telemetry.prometheus import counter, gauge, histogram
from supervisor.contention import Contention
from supervisor.executables import ExecutableStatus
from supervisor.live.gpus import GpuReading
from supervisor.live.loop import ControlLoop

Value = Callable[[ExecutableStatus], float | None]

_CORES: Sequence[tuple[str, str, Value]] = (
    ("demanded", "Cores that the controller asks for.", lambda s: s.demand),
    ("allocated", "Cores that fit the worker.", lambda s: s.allocation),
    (
        "available",
        "Cores that it could have: its maximum, or what a shortage leaves it.",
        lambda s: s.available,
    ),
    ("applied", "Cores that the actuator confirmed.", lambda s: s.applied),
    ("observed", "Cores that the kernel grants.", lambda s: s.observed),
    ("used", "Cores used over the last period.", lambda s: _read(s, s.used)),
)


def collect(loops: Sequence[ControlLoop], gpus: Sequence[GpuReading]) -> Iterator[Metric]:
    """Yield every metric of the workers, and of the GPUs of this host, which is the first one."""
    executables = [entry for loop in loops for entry in loop.core.status.items()]
    for what, meaning, value in _CORES:
        yield gauge(
            f"cores_{what}",
            meaning,
            ["executable", "model"],
            (((name, s.managed.model.name), value(s)) for name, s in executables),
        )
    by_executable: Sequence[tuple[str, str, Value]] = (
        ("cpu_seconds", "Core-seconds used.", lambda s: _read(s, s.usage)),
        (
            "applied_core_seconds",
            "Core-seconds applied: the cores that the actuator confirmed over time, or used where "
            "that was more.",
            lambda s: s.core_seconds,
        ),
        (
            "quota_periods",
            "Quota periods in which the executable ran.",
            lambda s: None if s.reading is None else s.reading.periods,
        ),
        (
            "throttled_periods",
            "Quota periods in which the executable ran out of quota.",
            lambda s: None if s.reading is None else s.reading.throttled,
        ),
        ("quota_changes", "Quotas that were changed.", lambda s: s.changes),
        ("actuation_failures", "Quotas that could not be set.", lambda s: s.failures),
    )
    for name, meaning, value in by_executable:
        samples = (((e,), value(s)) for e, s in executables)
        yield counter(name, meaning, ["executable"], samples)
    yield gauge(
        "throttled_ratio",
        "Share of the last quota periods in which the executable ran out of quota.",
        ["executable"],
        (((name,), _read(s, s.throttled)) for name, s in executables),
    )
    yield gauge(
        "controller_term_cores",
        "What each addend of the control law asked for last; absent while it needs none.",
        ["executable", "model", "term"],
        (
            ((name, s.managed.model.name, term), cores)
            for name, s in executables
            if s.decisions
            for term, cores in s.decisions[-1].demand.terms.items()
        ),
    )
    yield from _workers(loops)
    if loops:
        yield from _gpus(loops[0].worker, gpus)


def _read(status: ExecutableStatus, value: float | None) -> float | None:
    """Return a kernel's value once there is a reading: a 0 would look like a counter reset."""
    return None if status.reading is None else value


def _workers(loops: Sequence[ControlLoop]) -> Iterator[Metric]:
    labels, named = ["worker"], [((loop.worker,), loop) for loop in loops]
    yield gauge(
        "worker_cores",
        "Cores that are shared out.",
        labels,
        [(w, x.core.capacity) for w, x in named],
    )
    yield gauge(
        "worker_demand_met_ratio",
        "eta: capacity over demand; below 1 demands are cut.",
        labels,
        [(w, x.core.eta) for w, x in named],
    )
    yield from _hosts([(w, x.core.contention) for w, x in named])
    yield counter("ticks", "Control periods done.", labels, [(w, x.ticks) for w, x in named])
    yield counter(
        "ticks_missed", "Control periods left out.", labels, [(w, x.missed) for w, x in named]
    )
    yield gauge(
        "control_period_seconds", "The control period.", labels, [(w, x.period) for w, x in named]
    )
    yield histogram(
        "tick_jitter_seconds", "How late ticks began.", labels, [(w, x.jitter) for w, x in named]
    )
    yield histogram(
        "actuation_duration_seconds",
        "What it took to set the quotas of a tick.",
        labels,
        [(w, x.actuation) for w, x in named],
    )


def _hosts(found: Sequence[tuple[tuple[str], Contention | None]]) -> Iterator[Metric]:
    measured: Sequence[tuple[str, str, Callable[[Contention], float | None]]] = (
        ("others_cores", "CPUs of the worker's host that others use.", lambda c: c.others),
        (
            "stolen_cores",
            "CPUs of the worker's host that its hypervisor takes.",
            lambda c: c.stolen,
        ),
        (
            "cpu_pressure_ratio",
            "Share of the last period in which something on the worker's host waited for a CPU "
            "(PSI).",
            lambda c: c.waited,
        ),
    )
    for name, meaning, value in measured:
        samples = [(worker, None if c is None else value(c)) for worker, c in found]
        yield gauge(f"host_{name}", meaning, ["worker"], samples)


def _gpus(worker: str, gpus: Sequence[GpuReading]) -> Iterator[Metric]:
    labels = ["worker", "gpu"]
    yield gauge(
        "gpu_busy_ratio",
        "Share of the last moment in which the GPU computed (NVML).",
        labels,
        (((worker, str(g.index)), g.utilization) for g in gpus),
    )
    yield gauge(
        "gpu_memory_used_bytes",
        "Memory in use on the GPU (NVML).",
        labels,
        (((worker, str(g.index)), g.memory_used) for g in gpus),
    )
    yield gauge(
        "gpu_memory_bytes",
        "Memory of the GPU (NVML).",
        labels,
        (((worker, str(g.index)), g.memory_total) for g in gpus),
    )

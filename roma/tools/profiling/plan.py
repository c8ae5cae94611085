"""Selection of what to measure: the executables of a roma.yaml and their quotas; no I/O.

A model's cost needs the kernel's accounting, so it is measured where a cgroup is known: at a model
server that is started for it (backend `process`), else at a listed one (backend `static`) that has
a `cgroup`, under its present quota. GPU time needs an address only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roma.config.executable import Executable
from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.config.workers import BackendKind
from roma.domain import units
from roma.domain.errors import ConfigError
from roma.domain.model import Device

DEFAULT_CORES = (0.25, 0.5, 1.0)
"""Quotas to measure under, where they fit; the model's maximum is added."""

MOST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A model: where its cost is measured, under which quotas, and on which GPUs its time.

    `is_ours`: this program starts the server and sets its quota; then `cores` are the quotas.
    """

    model: str
    executable: Executable
    is_ours: bool
    cores: tuple[float, ...]
    gpu_urls: tuple[str, ...]

    def steps(self, batches: Sequence[int], machine: float) -> list[tuple[float, int]]:
        """Return (cores, batch) of every point; all of the machine's cores mean no quota.

        Batch 1 is always measured without a quota too: parallelism shows only there.
        """
        found = [(cores, batch) for batch in batches for cores in self.cores]
        return found if (machine, 1) in found else [*found, (machine, 1)]


@dataclass(frozen=True, slots=True)
class ProfilingPlan:
    """`targets` in the order of the file, and by model the reason why it is `skipped`."""

    targets: tuple[Target, ...]
    skipped: tuple[str, ...]


def make(
    config: Config,
    *,
    machine: float,
    only: Sequence[str] = (),
    cores: Sequence[float] | None = None,
) -> ProfilingPlan:
    """Return what to measure on `machine` cores; raise ConfigError naming what is impossible."""
    for name in only:
        if name not in config.models:
            known = ", ".join(config.models)
            raise ConfigError(f"--model = {name}: must be one of {known}")
    low = units.min_cores(config.control.cfs_period)
    for value in cores or ():
        if not low <= value <= machine:
            raise ConfigError(
                f"--cores = {value:g}: must be from {low:g} to {machine:g}, this machine's cores"
            )
    gpus = _executables(config, BackendKind.STATIC, Device.GPU)
    gpu_urls = tuple(e.url for e in gpus if not e.spec.is_planned)
    targets, skipped = [], []
    for name in config.models:
        if only and name not in only:
            continue
        found = _measurable(config, name)
        if found is None:
            skipped.append(
                f"models.{name}: cannot be profiled: no executable of it has a cgroup here "
                "(backend process starts one; backend static must name one)"
            )
            continue
        executable, is_ours = found
        quotas = _quotas(executable, machine, cores) if is_ours else ()
        targets.append(Target(name, executable, is_ours, quotas, gpu_urls))
    if not targets or (only and skipped):
        raise ConfigError("\n".join(skipped))
    return ProfilingPlan(tuple(targets), tuple(skipped))


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return a comma-separated list in rising order; raise ConfigError naming the option."""
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise ConfigError(f"{option} = {text}: must be numbers > 0, separated by commas")
    return tuple(values)


def batches(text: str) -> tuple[int, ...]:
    """Return the batch sizes, always including 1; raise ConfigError."""
    values = numbers("--batch", text)
    if any(value != int(value) or value > MOST_BATCH for value in values):
        raise ConfigError(f"--batch = {text}: must be whole numbers from 1 to {MOST_BATCH}")
    return tuple(sorted({1, *map(int, values)}))


def _measurable(config: Config, model: str) -> tuple[Executable, bool] | None:
    for backend in (BackendKind.PROCESS, BackendKind.STATIC):
        for executable in _executables(config, backend, Device.CPU):
            if executable.spec.models == (model,) and executable.cgroup is not None:
                return executable, backend is BackendKind.PROCESS
    return None


def _executables(config: Config, backend: BackendKind, device: Device) -> list[Executable]:
    return [
        executable
        for worker in config.workers
        if worker.backend is backend
        for executable in on_worker(config, worker)
        if executable.spec.device is device
    ]


def _quotas(
    executable: Executable, machine: float, asked: Sequence[float] | None
) -> tuple[float, ...]:
    if asked is not None:
        return tuple(sorted(set(asked)))
    most = min(executable.max_cores, machine)
    return tuple(sorted({most, *(cores for cores in DEFAULT_CORES if cores < most)}))

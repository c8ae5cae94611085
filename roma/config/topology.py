"""All sections of roma.yaml, and what follows from them: ports, URLs, replicas, periods.

Nothing is checked here; `roma.config.schema` does that.
"""

import itertools
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from roma.config.control import (
    DEFAULT_MINIMUM,
    LATE_SHARE,
    LEAST_MINIMUM,
    LONG_PERIOD,
    SHORT_PERIOD,
    ControlConfig,
)
from roma.config.gateway import GatewayConfig
from roma.config.models import ModelConfig
from roma.config.plant import PlantConfig
from roma.config.presets import Preset
from roma.config.replicas import Placement, assign
from roma.config.scheduling import SchedulingConfig
from roma.config.security import TokensConfig, reachable
from roma.config.workers import Name, WorkerConfig
from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain import units
from roma.domain.errors import ConfigError
from roma.domain.model import ModelSpec
from roma.telemetry import logs


class LogConfig(Section):
    """Logging of the programs to standard error."""

    format: logs.Format = "console"
    """Format of the lines. `json`: one object per line, for machines."""
    level: logs.Level = "info"
    requests: Literal["none", "failed", "all"] = "failed"
    """Requests that get a line. `failed`: failed and rejected requests, at most one line a second
    for each model and reason, with a count of the others. `all`: every request, answered ones
    included, without a limit."""


class Topology(Section):
    """The sections, with their derived values; raises Fault where a value cannot be derived."""

    preset: Preset | None = None
    """Defaults of a system of the literature. `paper` is the ROMA paper's: its policies, law,
    gains, period and promise on the mean. Keys set in the file take precedence."""
    name: Name = "roma"
    """Name of this deployment; its cgroups are below this name."""
    models: Annotated[dict[Name, ModelConfig], Field(min_length=1)]
    profile: FilePath | None = None
    """A file written by `roma profile`, relative to roma.yaml, with the cost of a request of each
    model. It gives the laws their prior and the simulator its plant."""
    workers: tuple[WorkerConfig, ...]
    placement: Placement = Placement.BALANCE
    """Choice of the workers for a model's replicas; never two of one model on one worker (paper
    §2.2)."""
    per_worker: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Most CPU executables per worker that ROMA starts; default: no limit."""
    scheduling: SchedulingConfig = SchedulingConfig()
    control: ControlConfig = ControlConfig()
    gateway: GatewayConfig = GatewayConfig()
    tokens: TokensConfig = TokensConfig()
    """Files with the secrets of the admin port, the exchange and /metrics; default: none
    required."""
    log: LogConfig = LogConfig()
    plant: PlantConfig | None = None
    """The plant that `roma simulate` simulates; nothing else reads it."""

    @property
    def discovered(self) -> tuple[WorkerConfig, ...]:
        """The workers whose executables come and go; one supervisor controls all of them."""
        return tuple(w for w in self.workers if w.is_discovered)

    def control_port(self, worker: WorkerConfig) -> int:
        """Return the port of a worker's supervisor, which those that are discovered share."""
        return self.control.port + next(
            i
            for i, w in enumerate(self.workers)
            if w.name == worker.name or (w.is_discovered and worker.is_discovered)
        )

    @cached_property
    def placed(self) -> dict[str, list[str]]:
        """Return, by worker, the models whose CPU executables ROMA starts there."""
        workers = [w.name for w in self.workers if w.is_placed]
        # The executables of static workers are started outside ROMA.
        replicas = {name: m.replicas for name, m in self.models.items()} if workers else {}
        pinned = {n: m.workers for n, m in self.models.items() if m.workers is not None}
        for name, chosen in pinned.items():
            for unknown in [w for w in chosen if w not in workers]:
                bound = "one of the workers where ROMA starts model servers: "
                raise Fault(
                    f"models.{name}.workers", unknown, bound + (", ".join(workers) or "none is")
                )
        try:
            return assign(replicas, workers, self.placement, self.per_worker, pinned)
        except ValueError as error:
            name = str(error)
            bound = f"at most the workers with room ({len(workers)} workers"
            limit = f", per_worker = {self.per_worker}" if self.per_worker else ""
            if name in pinned:
                key, value = f"models.{name}.workers", ", ".join(pinned[name])
            else:
                key, value = f"models.{name}.replicas", str(replicas[name] or "one per worker")
            raise Fault(key, value, bound + limit + ")") from error

    @cached_property
    def slots(self) -> dict[str, int]:
        """Return each model's offset among the ports of a worker."""
        pinned = {name: m.slot for name, m in self.models.items() if m.slot is not None}
        for name, slot in pinned.items():
            if list(pinned.values()).count(slot) > 1:
                raise Fault(f"models.{name}.slot", slot, "of one model only")
        free = (n for n in itertools.count() if n not in pinned.values())
        return {name: pinned[name] if name in pinned else next(free) for name in self.models}

    @property
    def model_specs(self) -> list[ModelSpec]:
        """The models as the cores know them."""
        return [
            ModelSpec(
                name,
                m.sla.promise,
                m.sla.effective_deadline,
                m.max_waiting,
                None if m.profile is None else m.profile.cost,
                m.ordered_variants,
            )
            for name, m in self.models.items()
        ]

    def minimum(self, model: str) -> float:
        """Return the fewest cores that an executable of a model ever has."""
        chosen = self.models[model].cpu.min
        if chosen is not None:
            return chosen
        default = LEAST_MINIMUM if self.control.law == LATE_SHARE else DEFAULT_MINIMUM
        return max(default, units.min_cores(self.control.cfs_period))

    def period(self, worker: WorkerConfig) -> float:
        """Return the control period of a worker, in seconds."""
        chosen = worker.period or self.control.period
        if chosen is not None:
            return chosen
        is_short = self.control.law == LATE_SHARE and worker.has_fast_quotas
        return SHORT_PERIOD if is_short else LONG_PERIOD

    @property
    def decides_early(self) -> bool:
        """True if supervisors end a period when a queue has outgrown its cores.

        Only the default law takes periods of any length, and decides without readings of usage.
        """
        return self.control.law == LATE_SHARE

    @property
    def reaction(self) -> float:
        """Longest time, in seconds, in which cores follow a load; 0 where the file fixes them."""
        if self.control.law == "static" or self.control.dry_run:
            return 0.0
        return max(self.period(worker) for worker in self.workers)

    @property
    def window(self) -> float:
        """Window of the response-time statistics, in seconds."""
        longest = max(self.period(worker) for worker in self.workers)
        if self.control.law == LATE_SHARE:
            # Statistics of response times need more samples than a short period has. The law takes
            # counts, and this mean only for a promise on it.
            longest = max(LONG_PERIOD, longest)
        return self.control.window or longest

    def worker(self, name: str | None) -> WorkerConfig:
        """Return the named worker; without a name there must be exactly one."""
        if name is None and len(self.workers) == 1:
            return self.workers[0]
        for worker in self.workers:
            if worker.name == name:
                return worker
        known = ", ".join(w.name for w in self.workers)
        if name is None:
            raise ConfigError(f"worker: missing; must be one of {known}")
        raise ConfigError(f"worker = {name}: must be one of {known}")

    @property
    def dispatcher_urls(self) -> tuple[str, ...]:
        """URLs of the dispatchers for the supervisors' exchange."""
        return self.control.dispatchers or self.gateway.exchange_urls

    @property
    def dispatcher_count(self) -> int:
        """Number of dispatchers that share the executables, one per address of the exchange."""
        return max(self.gateway.processes, len(self.control.dispatchers))

    @property
    def supervisor_urls(self) -> dict[str, str]:
        """URL of each worker's supervisor, by worker."""
        control, named = self.control, self.gateway.supervisors
        return {
            w.name: named.get(w.entry)
            or reachable(control.host, self.control_port(w), tls=control.tls is not None)
            for w in self.workers
            if not w.is_pool
        }

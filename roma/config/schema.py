"""`roma.yaml`, validated once, at load; every fault becomes one line with key, value and bound.

Times are seconds, CPU is cores, sizes are bytes. Unknown and duplicate keys are refused, because
a misspelt key would silently mean its default.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from roma.config import policy_file, presets, renamed, yaml_file
from roma.config import profile as profiles
from roma.config.gateway import GatewayConfig
from roma.config.plant import PlantConfig
from roma.config.presets import Preset
from roma.config.replicas import Placement, assign
from roma.config.scheduling import PLANNED, QUALITY, QualityConfig, SchedulingConfig
from roma.config.security import PeerUrl, TlsConfig, TokensConfig, reachable
from roma.config.workers import (
    UNIX,
    Backend,
    ControlPeriod,
    Cores,
    Host,
    Name,
    Port,
    Seconds,
    WorkerConfig,
    check_socket,
)
from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain import units
from roma.domain.errors import ConfigError, naming
from roma.domain.model import BUDGETS, MEAN_ALPHA, Device, ModelSpec, Sharing, Sla, Statistic
from roma.domain.variants import Variant
from roma.telemetry import logs

DEFAULT_BUDGET: Final = 0.02
"""Default share of the requests that may be late."""


LATE_SHARE: Final = "late_share"
DEFAULT_LAW: Final = LATE_SHARE
"""Default control law."""

LEAST_MINIMUM, DEFAULT_MINIMUM = 0.02, 0.1
"""Default cores that an idle executable keeps, with `late_share` and with other laws."""

SHORT_PERIOD, LONG_PERIOD = 0.2, 1.0
"""Default control periods in seconds, where a quota is a cgroup file and elsewhere."""


class SlaConfig(Section):
    """The promise on a model's response time (queue plus execution)."""

    response_time: Seconds
    """Seconds."""
    budget: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of the requests that may be late, refused or failed; default: 0.02."""
    statistic: Statistic | None = None
    """Alternative to a budget: `p95` and `p99` mean budgets of 0.05 and 0.01, `each` a budget of
    0.001 whose deadline is the response time; `mean` bounds the mean (the ROMA paper's promise)."""
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """Set point as a share of a promise on the mean; default: 0.8 (paper §5)."""
    deadline: Seconds | None = None
    """Longest useful response time: no request waits beyond it. Default: the response time itself
    for `each`, twice that for the others."""

    @model_validator(mode="after")
    def _check(self) -> "SlaConfig":
        if self.deadline is not None and self.deadline < self.response_time:
            raise Fault("deadline", self.deadline, f"≥ response_time ({self.response_time:g})")
        if self.budget is not None and self.statistic is not None:
            raise Fault("budget", self.budget, f"absent where statistic = {self.statistic}")
        if self.alpha is not None and self.statistic is not Statistic.MEAN:
            given = "is absent" if self.statistic is None else f"= {self.statistic}"
            raise Fault("alpha", self.alpha, f"absent where statistic {given}: only mean has it")
        return self

    @property
    def promise(self) -> Sla:
        """The promise as the cores know it, with its defaults filled in."""
        match self.statistic:
            case None:
                return Sla.within(self.response_time, self.budget or DEFAULT_BUDGET)
            case Statistic.P95 | Statistic.P99:
                return Sla.within(self.response_time, BUDGETS[self.statistic])
            case Statistic.EACH:
                return Sla(self.response_time, Statistic.EACH)
            case Statistic.MEAN:
                return Sla(self.response_time, Statistic.MEAN, self.alpha or MEAN_ALPHA)
            case _:
                assert_never(self.statistic)

    @property
    def effective_deadline(self) -> float:
        """The deadline with its default filled in."""
        if self.deadline is not None:
            return self.deadline
        return self.response_time * (1 if self.statistic is Statistic.EACH else 2)


class CpuConfig(Section):
    """Bounds of a model's CPU allocation, per executable."""

    min: Cores | None = None
    """Cores it keeps when idle; default: 0.02 (0.1 with laws other than `late_share`). Once the
    cost of a request is known, the default is at least enough for one request in time, unless GPUs
    serve the model."""
    max: Cores | None = None
    """Most cores it can use; default: what its worker can allocate."""
    initial: Cores | None = None
    """Cores at start, before the first measurement; default: max. Loading and warming up are the
    most expensive operations of a model server; they get only the cores that serving models leave
    free."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads that one request can use; also sizes the model server's intra-op pool."""
    in_flight: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most requests in flight per executable; default: it follows the cores, max(1, ceil(cores /
    threads)). A fixed limit only moves the queue into the model server, where no scheduler can
    reorder it: `roma experiment run ablation` shows the cost."""

    @model_validator(mode="after")
    def _check(self) -> "CpuConfig":
        least = self.min or 0.0
        if self.max is not None and self.max < least:
            raise Fault("max", self.max, f"≥ min ({least:g})")
        if self.initial is not None and self.initial < least:
            raise Fault("initial", self.initial, f"≥ min ({least:g})")
        if self.initial is not None and self.max is not None and self.initial > self.max:
            raise Fault("initial", self.initial, f"≤ max ({self.max:g})")
        return self


class VariantConfig(Section):
    """One version of a model, under the name by which planned devices hold it."""

    accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """κ: value of one of its answers relative to those of the best variant, which has 1."""


class ModelConfig(Section):
    """A model: its files, its SLA and its limits."""

    path: FilePath | None = None
    """Directory with numbered version directories (a SavedModel each). Relative to roma.yaml.
    Needed by backends that start the model server."""
    volume: Name | None = None
    """A named volume that holds these directories, instead of `path`. Backend `docker` only."""
    sla: SlaConfig
    cpu: CpuConfig = CpuConfig()
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Relative weight of its share when the worker is short of cores; `control.sharing: max_min`
    only."""
    replicas: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of CPU executables, each on a different worker; default: one on every worker. Workers
    of backend `static` do not count."""
    memory: Annotated[ByteSize, Field(ge=64 * 2**20)] | None = None
    """Memory limit of each of its containers, e.g. 2GiB; default: none. Backend `docker` only."""
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most requests that may wait."""
    max_body_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31)] | None = None
    """Largest request body; default: `gateway.max_body_bytes`."""
    max_answer_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31 - 1)] | None = None
    """Largest answer of its model servers; default: `gateway.max_answer_bytes`."""
    slot: Annotated[int, Field(ge=0, le=60_000)] | None = None
    """Number that sets its executables' port: base_port + gpus + slot; default: the first number
    that no other model has. `roma models remove` writes it where the default would change."""
    profile: profiles.ModelProfile | None = None
    """Cost of one request; default: its entry in the file `profile`, if there is one."""
    variants: dict[Name, VariantConfig] = Field(default_factory=dict)
    """Versions of the model that may answer for it; default: the model itself. For scheduling.gpu
    `fixed`, `qos`, `qos-opt` and `qos-rl`, on planned devices that hold all of them."""

    @property
    def ordered_variants(self) -> tuple[Variant, ...]:
        """The variants, most accurate first."""
        found = [Variant(name, v.accuracy) for name, v in self.variants.items()]
        return tuple(sorted(found, key=lambda v: -v.accuracy))


class ControlConfig(Section):
    """The control loop."""

    law: Literal["captain", "late_share", "paper", "pi", "rules", "static", "usage"] = DEFAULT_LAW
    """Control law. `late_share` holds the share of late requests at its budget (decision 20). `pi`
    takes gains from `roma design tune`. The others are baselines: the ROMA paper to the letter
    (`paper`, `rules`, `static`), Autothrottle's `captain`, HPA's `usage`."""
    gains: dict[str, float | str] = Field(default_factory=dict)
    """Gains of the law by name, e.g. {error: log, K: 0.5, a: 0.8} for pi; defaults otherwise."""
    gains_file: FilePath | None = None
    """A file written by `roma design tune`, relative to roma.yaml; `gains` take precedence."""
    period: ControlPeriod | None = None
    """Control period in seconds. Default with `late_share`: 0.2 where a quota is a cgroup file,
    which costs 0.1 core-ms a change, and 1 through the Docker engine, where a change costs 12.
    Default with other laws: 1, the period that their gains assume. `workers[].period` sets it for
    one worker."""
    window: Seconds | None = None
    """Window of the response-time statistics in seconds; default: the longest control period, and
    at least 1 with `late_share`."""
    sharing: Sharing = Sharing.MAX_MIN
    """Rule for sharing a worker's cores when demands exceed them. `max_min`: a demand below the
    fair share is met in full; `proportional`: the same part of each (η·u, paper Alg. 2)."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.0
    """γ: share of the spare cores handed out on top of the demands (paper Alg. 2)."""
    cfs_period: Annotated[float, Field(ge=0.01, le=1)] = 0.1
    """Period of the CPU quota in seconds. A model that has used up its quota stalls until the next
    period."""
    cfs_burst: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Most unused quota that a period inherits from earlier ones, as a share of the quota; 0 turns
    this off. At 1 a model may use up to twice its quota in one period."""
    dry_run: bool = False
    """Compute and log allocations, apply none."""
    host: Host = "127.0.0.1"
    port: Port = 8502
    """Port at which the first worker's supervisor reports its state; further workers count up from
    it."""
    tls: TlsConfig | None = None
    """Certificate of the supervisors' listeners; default: no TLS."""
    insecure: bool = False
    """Accept connections there from other machines although a token is missing."""
    dispatchers: tuple[PeerUrl, ...] = ()
    """Admin addresses of the dispatchers; default: the gateway of this file."""
    decision_log: FilePath | None = None
    """Directory for the decision log, relative to roma.yaml: every decision, and a record per model
    and second, as lines of JSON for `roma report`. At most two files of 64 MiB per worker. Default:
    none."""


class LogConfig(Section):
    """Logging of the programs to standard error."""

    format: logs.Format = "console"
    """Format of the lines. `json`: one object per line, for machines."""
    level: logs.Level = "info"
    requests: Literal["none", "failed", "all"] = "failed"
    """Requests that get a line. `failed`: failed and rejected requests, at most one line a second
    for each model and reason, with a count of the others. `all`: every request, answered ones
    included, without a limit."""


class Config(Section):
    """The whole file."""

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

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return presets.filled(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if not self.workers:
            raise Fault("workers", "[]", "at least one")
        names = [worker.name for worker in self.workers]
        if len(set(names)) < len(names):
            raise Fault("workers", names, "different names")
        for i, worker in enumerate(self.workers):
            self._check_worker(f"workers.{i}", worker)
        self._check_ports()
        self._check_planned()
        self._check_variants()
        self._check_served()
        self._check_several()
        for name in self.plant.models if self.plant else ():
            if name not in self.models:
                raise Fault(f"plant.models.{name}", name, "one of " + ", ".join(self.models))
        for name in self.gateway.supervisors:
            if name not in names:
                raise Fault(f"gateway.supervisors.{name}", name, "one of " + ", ".join(names))
        self._check_models()
        return self

    def _check_models(self) -> None:
        """Refuse limits of a model that contradict each other or have no effect."""
        smallest = units.min_cores(self.control.cfs_period)
        for name, model in self.models.items():
            least = self.minimum(name)
            if least < smallest:
                bound = f"≥ {smallest:g} (a quota of 1 ms per cfs_period)"
                raise Fault(f"models.{name}.cpu.min", least, bound)
            for key in ("max", "initial"):
                cores = getattr(model.cpu, key)
                if cores is not None and cores < least:
                    raise Fault(f"models.{name}.cpu.{key}", cores, f"≥ cpu.min ({least:g})")
            most = self.gateway.max_body_bytes
            if model.max_body_bytes is not None and model.max_body_bytes > most:
                bound = f"≤ gateway.max_body_bytes ({most})"
                raise Fault(f"models.{name}.max_body_bytes", model.max_body_bytes, bound)

    def _check_served(self) -> None:
        """Refuse a model without an executable, and two executables at one address."""
        listed = [e for worker in self.workers for e in worker.executables]
        for key in ("url", "actions", "grpc"):
            addresses = [value for e in listed if (value := getattr(e, key)) is not None]
            for address in addresses:
                if addresses.count(address) > 1:
                    raise Fault(f"workers.executables.{key}", address, "listed once")
        if any(w.backend is not Backend.STATIC for w in self.workers):
            return  # at least one replica of every model is placed
        if any(e.device is Device.GPU for e in listed):
            return
        for name in self.models:
            if all(e.model != name for e in listed):
                raise Fault(f"models.{name}", name, "served by an executable of a worker")

    def _check_planned(self) -> None:
        """Refuse planned GPUs beside other executables, or with a policy that cannot plan them.

        A planning policy refuses requests that planned GPUs cannot answer in time, even if a CPU
        still could.
        """
        listed = {
            f"workers.{i}.executables.{k}": executable
            for i, worker in enumerate(self.workers)
            for k, executable in enumerate(worker.executables)
        }
        planned = [key for key, e in listed.items() if e.actions is not None]
        gpu, policies = self.scheduling.gpu, "one of " + ", ".join(PLANNED)
        for i, worker in enumerate(self.workers):
            if worker.gpus and self.scheduling.is_planned:
                bound = f"another one where GPUs have no actions (workers.{i}.gpus = {worker.gpus})"
                raise Fault("scheduling.gpu", gpu, bound)
            if planned and worker.backend is not Backend.STATIC:
                bound = f"static where GPUs have actions ({planned[0]})"
                raise Fault(f"workers.{i}.backend", worker.backend.value, bound)
        for key, executable in listed.items():
            if executable.actions is not None:
                if not self.scheduling.is_planned:
                    raise Fault("scheduling.gpu", gpu, f"{policies} where {key} has actions")
            elif executable.device is Device.GPU and self.scheduling.is_planned:
                raise Fault("scheduling.gpu", gpu, f"another one where {key} has no actions")
            elif planned:
                raise Fault(f"{key}.url", executable.url, f"absent: {planned[0]} has actions")

    def _check_variants(self) -> None:
        """Refuse variants that no policy would choose, and ambiguous names."""
        if self.scheduling.quality.policy is not None and len(self.models) != 1:
            raise Fault("models", len(self.models), "exactly one where scheduling.gpu is qos-rl")
        taken: dict[str, str] = {}
        listed = [e for worker in self.workers for e in worker.executables]
        has_devices = any(e.actions is not None for e in listed)
        for name, model in self.models.items():
            if model.variants and not self.scheduling.has_variants:
                bound = "one of " + ", ".join(QUALITY) + f" where models.{name} has variants"
                raise Fault("scheduling.gpu", self.scheduling.gpu, bound)
            if model.variants and not has_devices:
                bound = "absent where no executable has actions"
                raise Fault(f"models.{name}.variants", ", ".join(model.variants), bound)
            for variant in model.variants or (name,):
                other = taken.get(variant)
                if other is not None:
                    raise Fault(f"models.{name}.variants", variant, f"no variant of {other} too")
                taken[variant] = name

    def _check_several(self) -> None:
        """Refuse several dispatchers where a single one must track or write all state."""
        count = self.gateway.processes
        if count == 1:
            return
        listed = [e for worker in self.workers for e in worker.executables]
        if any(w.gpus for w in self.workers) or any(e.device is Device.GPU for e in listed):
            raise Fault("gateway.processes", count, "1 with GPUs: each would send to one at once")
        for name, model in self.models.items():
            if model.cpu.in_flight is not None and model.cpu.in_flight < count:
                bound = f"≥ gateway.processes ({count}), or absent"
                raise Fault(f"models.{name}.cpu.in_flight", model.cpu.in_flight, bound)
        control = self.control
        if control.dispatchers and len(control.dispatchers) < count:
            bound = f"an address for each of gateway.processes ({count}), or absent"
            raise Fault("control.dispatchers", list(control.dispatchers), bound)
        if control.decision_log is not None:
            bound = f"absent where gateway.processes > 1 ({count})"
            raise Fault("control.decision_log", str(control.decision_log), bound)

    def _check_ports(self) -> None:
        """Refuse two listeners on one port, and counted ports beyond the highest port number."""
        g = self.gateway
        taken = {g.port: "gateway.port"}
        others = [("gateway.admin_port", g.admin_port)]
        own = {
            "gateway.grpc_port": g.grpc_port,
            "gateway.exchange_port": g.exchange_port,
            "gateway.metrics_port": g.metrics_port,
        }
        others += [(key, port) for key, port in own.items() if port is not None]
        others += [("gateway.process_port", port) for port in g.admin_ports[1:]]
        others += [("control.port", self.control.port + i) for i in range(len(self.workers))]
        for i, worker in enumerate(self.workers):
            if worker.backend is not Backend.STATIC:
                key = f"workers.{i}.base_port"
                offsets = [*range(worker.gpus)]
                offsets += [worker.gpus + self.slots[m] for m in self.placed[worker.name]]
                others += [(key, worker.base_port + k) for k in offsets]
                if worker.grpc_offset is not None:
                    first, key = worker.base_port + worker.grpc_offset, f"{key} + grpc_offset"
                    others += [(key, first + k) for k in offsets]
        for key, port in others:
            if port > 65535:
                raise Fault(key, port, "≤ 65535, counting up from its value")
            if port in taken:
                raise Fault(key, port, f"different from {taken[port]}")
            taken[port] = key

    def control_port(self, worker: WorkerConfig) -> int:
        """Return the port of a worker's supervisor."""
        return self.control.port + self.workers.index(worker)

    def _check_worker(self, key: str, worker: WorkerConfig) -> None:
        for i, executable in enumerate(worker.executables):
            if executable.model is not None and executable.model not in self.models:
                known = "one of " + ", ".join(self.models)
                raise Fault(f"{key}.executables.{i}.model", executable.model, known)
        if worker.backend is Backend.STATIC:
            return
        placed = {name: self.models[name] for name in self.placed[worker.name]}
        total = sum(self.minimum(name) for name in placed)
        if total > worker.allocatable:
            bound = f"≥ the sum of the models' cpu.min ({total:g})"
            raise Fault(f"{key}.cores - reserved", f"{worker.allocatable:g}", bound)
        for name, model in placed.items():
            _check_source(f"models.{name}", model, worker.backend)
            if (path := worker.socket(self.name, name)) is not None:
                check_socket(f"{key}.sockets", UNIX + path)
            for bound_name in ("max", "initial"):
                cores = getattr(model.cpu, bound_name)
                if cores is not None and cores > worker.allocatable:
                    bound = f"≤ cores - reserved of worker {worker.name} ({worker.allocatable:g})"
                    raise Fault(f"models.{name}.cpu.{bound_name}", cores, bound)

    @cached_property
    def placed(self) -> dict[str, list[str]]:
        """Return, by worker, the models whose CPU executables ROMA starts there."""
        workers = [w.name for w in self.workers if w.backend is not Backend.STATIC]
        # The executables of static workers are started outside ROMA.
        replicas = {name: m.replicas for name, m in self.models.items()} if workers else {}
        try:
            return assign(replicas, workers, self.placement, self.per_worker)
        except ValueError as error:
            key, name = f"models.{error}.replicas", str(error)
            bound = f"at most the workers with room ({len(workers)} workers"
            limit = f", per_worker = {self.per_worker}" if self.per_worker else ""
            raise Fault(key, replicas[name] or "one per worker", bound + limit + ")") from error

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
        is_short = self.control.law == LATE_SHARE and worker.backend is not Backend.DOCKER
        return SHORT_PERIOD if is_short else LONG_PERIOD

    @property
    def window(self) -> float:
        """Window of the response-time statistics, in seconds."""
        longest = max(self.period(worker) for worker in self.workers)
        if self.control.law == LATE_SHARE:
            # This law uses counts; response-time statistics need more samples than a short period
            # has.
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
        raise ConfigError(f"worker = {name}: must be one of {known}")

    @property
    def dispatcher_urls(self) -> tuple[str, ...]:
        """URLs of the dispatchers for the supervisors' exchange."""
        g = self.gateway
        tls = g.admin_tls is not None
        here = tuple(reachable(*address, tls=tls) for address in g.exchange_addresses)
        return self.control.dispatchers or here

    @property
    def supervisor_urls(self) -> dict[str, str]:
        """URL of each worker's supervisor, by worker."""
        control, named = self.control, self.gateway.supervisors
        return {
            w.name: named.get(w.name)
            or reachable(control.host, self.control_port(w), tls=control.tls is not None)
            for w in self.workers
        }


def _check_source(key: str, model: ModelConfig, backend: Backend) -> None:
    """Refuse a model that a backend cannot find, and keys that only containers support."""
    if backend is not Backend.DOCKER:
        for name in ("memory", "volume"):
            if (value := getattr(model, name)) is not None:
                raise Fault(f"{key}.{name}", value, "absent without backend docker")
    elif model.volume is not None and model.path is not None:
        raise Fault(f"{key}.volume", model.volume, "absent where path is set")
    if model.path is None and model.volume is None:
        raise Fault(f"{key}.path", None, f"set for backend {backend}")


def load(path: Path) -> Config:
    """Read and validate a file; raise `ConfigError` with one line per fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    config = parse(text, source=str(path))
    base = path.resolve().parent
    with naming("profile"):
        measured = profiles.load(base / config.profile).models if config.profile else {}
    models = {
        name: m.model_copy(
            update={
                "path": None if m.path is None else base / m.path,
                "profile": m.profile or measured.get(name),
            }
        )
        for name, m in config.models.items()
    }
    control = config.control
    if control.gains_file is not None:
        with naming("control.gains_file"):
            gains = _read_gains(base / control.gains_file, control.law)
        control = control.model_copy(update={"gains": {**gains, **control.gains}})
    if control.decision_log is not None:
        control = control.model_copy(update={"decision_log": base / control.decision_log})
    scheduling = config.scheduling
    if scheduling.quality.policy is not None:
        policy = base / scheduling.quality.policy
        quality = scheduling.quality.model_copy(update={"policy": policy})
        scheduling = scheduling.model_copy(update={"quality": quality})
        learned_policy(quality, config.model_specs)
    if control.tls is not None:
        control = control.model_copy(update={"tls": control.tls.relative_to(base)})
    plant = config.plant.relative_to(base) if config.plant else None
    workers = tuple(worker.relative_to(base) for worker in config.workers)
    return config.model_copy(
        update={
            "models": models,
            "workers": workers,
            "control": control,
            "scheduling": scheduling,
            "gateway": config.gateway.relative_to(base),
            "tokens": config.tokens.relative_to(base),
            "plant": plant,
        }
    )


_POLICY = "scheduling.quality.policy"


def learned_policy(
    quality: QualityConfig, models: Sequence[ModelSpec]
) -> policy_file.Policy | None:
    """Read the policy of `qos-rl`; raise `ConfigError` if it was trained for other variants."""
    if quality.policy is None:
        return None
    with naming(_POLICY):
        found = policy_file.load(quality.policy)
    (model,) = models
    variants = model.variants or (Variant(model.name, 1.0),)
    try:
        found.check(variants, width=quality.bin, utility=quality.utility)
    except ConfigError as error:
        raise ConfigError(f"{_POLICY}: {quality.policy}: {error}") from error
    return found


class _GainsFile(BaseModel):
    """A file written by `roma design tune`; the origin of the gains is for people to read."""

    model_config = ConfigDict(extra="forbid")

    law: str
    gains: dict[str, float | str]
    provenance: dict[str, Any] = {}


def _read_gains(path: Path, law: str) -> dict[str, float | str]:
    try:
        data = yaml_file.read(path.read_text(encoding="utf-8"), source=str(path))
        found = _GainsFile.model_validate(data)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(yaml_file.describe(error, str(path)))) from error
    if found.law != law:
        raise ConfigError(f"{path}: law = {found.law}: must be control.law ({law})")
    return found.gains


def parse(text: str, *, source: str = "roma.yaml") -> Config:
    """Validate YAML text; `source` names it in error messages."""
    data = yaml_file.read(text, source=source)
    if data is None:
        raise ConfigError(f"{source}: the file is empty")
    if isinstance(data, Mapping) and (old := list(renamed.faults(data))):
        raise ConfigError("\n".join(f"{source}: {line}" for line in old))
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(yaml_file.describe(error, source))) from error

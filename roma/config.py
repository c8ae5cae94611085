"""`roma.yaml`, validated once, at load; every fault becomes one line with key, value and bound.

Times are seconds, CPU is cores, sizes are bytes. Unknown and duplicate keys are refused, because
a misspelt key would silently mean its default.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from roma import strict_yaml, units
from roma.errors import ConfigError
from roma.model import Device, ModelSpec, Sla, Statistic
from roma.strict_yaml import Fault


def _without_nul(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path cannot contain NUL")
    return path


Seconds = Annotated[float, Field(ge=0.001, le=3600, allow_inf_nan=False)]
Cores = Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9:_][A-Za-z0-9.:_-]{0,252}$")]
Url = Annotated[str, Field(pattern=r"^http://[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*:[0-9]{1,5}$")]
GroupPath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.:@-]*(/[A-Za-z0-9_][\w.:@-]*)*$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SlaConfig(_Section):
    """The promise on a model's response time (queue plus execution)."""

    response_time: Seconds
    """Seconds."""
    statistic: Statistic = Statistic.MEAN
    """What is bounded: the mean, a percentile, or each single response time."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Set point as a share of the promise: 0.8 keeps a mean (paper §5), a per-request or p95
    promise needs about 0.5."""
    deadline: Seconds | None = None
    """Longest useful response time: a request that cannot make it is refused. Default: the
    response time itself for `each`, twice that for the others."""

    @model_validator(mode="after")
    def _check(self) -> "SlaConfig":
        if self.deadline is not None and self.deadline < self.response_time:
            raise Fault("deadline", self.deadline, f"≥ response_time ({self.response_time:g})")
        return self

    @property
    def effective_deadline(self) -> float:
        """The deadline with its default filled in."""
        if self.deadline is not None:
            return self.deadline
        return self.response_time * (1 if self.statistic is Statistic.EACH else 2)


class CpuConfig(_Section):
    """Bounds of a model's CPU allocation, per executable."""

    min: Cores = 0.1
    """Cores it keeps when idle."""
    max: Cores | None = None
    """Most cores it can use; default: what its worker can allocate."""
    initial: Cores | None = None
    """Cores at start, before the first measurement; default: max. Loading and warming up a model
    is the most expensive thing it does."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads that one request can use; also sizes the model server's intra-op pool."""

    @model_validator(mode="after")
    def _check(self) -> "CpuConfig":
        if self.max is not None and self.max < self.min:
            raise Fault("max", self.max, f"≥ min ({self.min:g})")
        if self.initial is not None and self.initial < self.min:
            raise Fault("initial", self.initial, f"≥ min ({self.min:g})")
        if self.initial is not None and self.max is not None and self.initial > self.max:
            raise Fault("initial", self.initial, f"≤ max ({self.max:g})")
        return self


class ModelConfig(_Section):
    """A model: where it is, what it is promised, what it may use."""

    path: Annotated[Path, AfterValidator(_without_nul)] | None = None
    """Directory with numbered version directories (a SavedModel each). Relative to roma.yaml.
    Needed by backends that start the model server."""
    sla: SlaConfig
    cpu: CpuConfig = CpuConfig()
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most requests that may wait."""


class Backend(StrEnum):
    """Who starts the model servers of a worker."""

    PROCESS = "process"
    """`roma up`: one local process per model, in its own cgroup."""
    DOCKER = "docker"
    """The Docker engine (follows in its own release)."""
    STATIC = "static"
    """Somebody else; roma.yaml lists their addresses."""


class ExecutableConfig(_Section):
    """A model server that somebody else started (backend `static`)."""

    url: Url
    """Its TensorFlow Serving REST address, http://host:port."""
    device: Device = Device.CPU
    model: str | None = None
    """The model it serves; none for a GPU, which serves all."""
    cgroup: GroupPath | None = None
    """Its cgroup, below the cgroup mount; without it its cores cannot be controlled."""

    @model_validator(mode="after")
    def _check(self) -> "ExecutableConfig":
        port = int(self.url.rpartition(":")[2])
        if not 1 <= port <= 65535:
            raise Fault("url", self.url, "at a port from 1 to 65535")
        if (self.model is None) != (self.device is Device.GPU):
            raise Fault("model", self.model, "set for device cpu, absent for device gpu")
        return self


class WorkerConfig(_Section):
    """A host whose cores its supervisor allocates."""

    name: Name = "local"
    backend: Backend = Backend.PROCESS
    cores: Cores
    """MC: cores of the worker that ROMA may count on."""
    reserved: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """GC: cores kept back for GPUs, gateway and others; MC - GC is allocated (paper Alg. 2)."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of the worker; the process backend has none."""
    base_port: Port = 8600
    """First port of the model servers that ROMA starts; one port each, counting up."""
    executables: tuple[ExecutableConfig, ...] = ()
    """Backend `static` only."""

    @property
    def allocatable(self) -> float:
        """AC = MC - GC, in cores."""
        return self.cores - self.reserved

    @model_validator(mode="after")
    def _check(self) -> "WorkerConfig":
        if self.reserved >= self.cores:
            raise Fault("reserved", self.reserved, f"< cores ({self.cores:g})")
        if self.backend is Backend.PROCESS and self.gpus:
            raise Fault("gpus", self.gpus, "0 for backend process (use docker or static)")
        if (self.backend is Backend.STATIC) != bool(self.executables):
            raise Fault(
                "executables",
                f"{len(self.executables)} listed",
                "at least one for backend static, none for the others",
            )
        return self


class SchedulingConfig(_Section):
    """What runs next where."""

    gpu: Literal["roma", "round_robin", "fcfs", "edf"] = "roma"
    cpu: Literal["round_robin"] = "round_robin"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of expected against measured response time in the GPU policy `roma`."""
    spill: Annotated[float, Field(ge=0, le=1)] = 0.0
    """θ: a CPU gets a request only if no GPU can reach it before θ·SLA. 0 is the paper's."""


class ControlConfig(_Section):
    """The one-second loop."""

    law: Literal["adaptive", "pi", "rules", "static"] = "adaptive"
    gains: dict[str, float | str] = {}
    """Gains of the law by name, e.g. {error: log, K: 0.5, a: 0.8} for pi; defaults otherwise."""
    period: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """Control period in seconds."""
    window: Seconds | None = None
    """Window of the response-time statistics in seconds; default: one period."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.0
    """γ: share of the spare cores handed out on top of the demands (paper Alg. 2)."""
    cfs_period: Annotated[float, Field(ge=0.01, le=1)] = 0.1
    """Period of the CPU quota in seconds. A spent quota stalls a model until the next period."""
    dry_run: bool = False
    """Compute and log allocations, apply none."""
    host: Host = "127.0.0.1"
    port: Port = 8502
    """Where the first worker's supervisor answers about its state; the next ones count up."""
    dispatchers: tuple[Url, ...] = ()
    """Admin addresses of the dispatchers; default: the gateway of this file."""


class GatewayConfig(_Section):
    """Where clients and supervisors reach the dispatcher."""

    host: Host = "127.0.0.1"
    port: Port = 8501
    """TensorFlow Serving's REST port."""
    admin_host: Host = "127.0.0.1"
    admin_port: Port = 8500
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**31)] = 32 * 2**20
    """A larger request body is refused with 413."""
    backend_timeout: Seconds = 60.0
    """Longest wait for a model server's answer, in seconds."""
    drain_timeout: Seconds = 10.0
    """On SIGTERM, how long requests in flight may take to finish, in seconds."""


class Config(_Section):
    """The whole file."""

    name: Name = "roma"
    """Names this deployment: its cgroups live below this name."""
    models: Annotated[dict[Name, ModelConfig], Field(min_length=1)]
    workers: tuple[WorkerConfig, ...]
    scheduling: SchedulingConfig = SchedulingConfig()
    control: ControlConfig = ControlConfig()
    gateway: GatewayConfig = GatewayConfig()

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
        self._check_served()
        smallest = units.min_cores(self.control.cfs_period)
        for name, model in self.models.items():
            if model.cpu.min < smallest:
                bound = f"≥ {smallest:g} (a quota of 1 ms per cfs_period)"
                raise Fault(f"models.{name}.cpu.min", model.cpu.min, bound)
        return self

    def _check_served(self) -> None:
        """Refuse a model that nothing serves, and two executables at one address."""
        listed = [e for worker in self.workers for e in worker.executables]
        urls = [e.url for e in listed]
        for url in urls:
            if urls.count(url) > 1:
                raise Fault("workers.executables.url", url, "listed once")
        if any(w.backend is not Backend.STATIC for w in self.workers):
            return
        if any(e.device is Device.GPU for e in listed):
            return
        for name in self.models:
            if all(e.model != name for e in listed):
                raise Fault(f"models.{name}", name, "served by an executable of a worker")

    def _check_ports(self) -> None:
        """Refuse two listeners on one port, and ports that count up beyond the last one."""
        g = self.gateway
        taken = {g.port: "gateway.port"}
        others = [("gateway.admin_port", g.admin_port)]
        others += [("control.port", self.control.port + i) for i in range(len(self.workers))]
        for i, worker in enumerate(self.workers):
            if worker.backend is not Backend.STATIC:
                key = f"workers.{i}.base_port"
                others += [(key, worker.base_port + k) for k in range(len(self.models))]
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
        total = sum(model.cpu.min for model in self.models.values())
        if total > worker.allocatable:
            bound = f"≥ the sum of the models' cpu.min ({total:g})"
            raise Fault(f"{key}.cores - reserved", f"{worker.allocatable:g}", bound)
        for name, model in self.models.items():
            if model.path is None:
                raise Fault(f"models.{name}.path", None, f"set for backend {worker.backend}")
            for bound_name in ("max", "initial"):
                cores = getattr(model.cpu, bound_name)
                if cores is not None and cores > worker.allocatable:
                    bound = f"≤ cores - reserved of worker {worker.name} ({worker.allocatable:g})"
                    raise Fault(f"models.{name}.cpu.{bound_name}", cores, bound)

    @property
    def model_specs(self) -> list[ModelSpec]:
        """The models as the cores know them."""
        return [
            ModelSpec(
                name,
                Sla(m.sla.response_time, m.sla.statistic, m.sla.alpha),
                m.sla.effective_deadline,
                m.max_waiting,
            )
            for name, m in self.models.items()
        ]

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
        """Where supervisors exchange."""
        g = self.gateway
        return self.control.dispatchers or (f"http://{g.admin_host}:{g.admin_port}",)


def load(path: Path) -> Config:
    """Read and validate a file; raise `ConfigError` with one line per fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    config = parse(text, source=str(path))
    base = path.resolve().parent
    models = {
        name: m.model_copy(update={"path": None if m.path is None else base / m.path})
        for name, m in config.models.items()
    }
    return config.model_copy(update={"models": models})


def parse(text: str, *, source: str = "roma.yaml") -> Config:
    """Validate YAML text; `source` names it in error messages."""
    data = strict_yaml.read(text, source=source)
    if data is None:
        raise ConfigError(f"{source}: the file is empty")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(strict_yaml.describe(error, source))) from error

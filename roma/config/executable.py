"""A model server as every program knows it: name, address, models, bounds of its cores."""

from dataclasses import dataclass
from pathlib import Path

from roma.config.topology import Topology
from roma.config.workers import UNIX, WorkerConfig
from roma.domain.addresses import authority
from roma.domain.model import Device, ExecutorSpec, slot_count


@dataclass(frozen=True, slots=True)
class Executable:
    """A model server: the dispatcher calls it, the launcher starts it, the supervisor sizes it.

    `cgroup` is its path below the cgroup mount, `container` the name of its container; without
    either its cores cannot be controlled. `min_cores` and `max_cores` bound its allocation; both
    are 0 on a GPU.
    """

    spec: ExecutorSpec
    host: str
    port: int
    paths: dict[str, Path]
    cgroup: str | None
    min_cores: float
    max_cores: float
    container: str | None = None
    grpc: tuple[str, int] | None = None
    """Host and port of its gRPC; None if it is not called by gRPC."""
    token: Path | None = None
    """File with the secret that a planned device requires."""
    socket: str | None = None
    """Path of the Unix socket of its REST API, which then replaces `host` and `port`."""

    @property
    def name(self) -> str:
        """The executable's name, unique in the deployment."""
        return self.spec.name

    @property
    def url(self) -> str:
        """Its REST address. A planned device has none: it takes actions at `host` and `port`."""
        assert not self.spec.is_planned, f"{self.name} has no URL"
        if self.socket is not None:
            return UNIX + self.socket
        return f"http://{authority(self.host, self.port)}"

    @property
    def controlled(self) -> bool:
        """True if its cores can be set."""
        on_cpu = self.spec.device is Device.CPU
        return on_cpu and (self.cgroup is not None or self.container is not None)

    @property
    def concurrency(self) -> int:
        """Highest value that its in-flight limit can reach (1 on a GPU)."""
        if self.spec.device is Device.GPU:
            return 1
        return slot_count(self.max_cores, self.spec.threads, self.spec.in_flight)


def on_gpu(
    config: Topology,
    worker: WorkerConfig,
    name: str,
    *,
    host: str,
    port: int,
    container: str | None = None,
) -> Executable:
    """Return the executable of a GPU, which serves all models (paper §2.2)."""
    spec = ExecutorSpec(f"{name}@{worker.name}", Device.GPU, tuple(config.models), worker.name)
    paths = {name: m.path for name, m in config.models.items() if m.path is not None}
    return Executable(spec, host, port, paths, None, 0.0, 0.0, container)


def on_cpu(
    config: Topology,
    worker: WorkerConfig,
    model: str,
    *,
    host: str,
    port: int,
    cgroup: str | None,
    container: str | None = None,
    name: str | None = None,
) -> Executable:
    """Return the executable of one model on the cores of a worker."""
    m = config.models[model]
    controlled = cgroup is not None or container is not None
    high = m.cpu.max if m.cpu.max is not None else worker.allocatable
    initial = m.cpu.initial if m.cpu.initial is not None else high
    if controlled:  # its worker may be smaller than others of the model
        initial, high = min(initial, worker.allocatable), min(high, worker.allocatable)
    spec = ExecutorSpec(
        name=f"{name or model}@{worker.name}",
        device=Device.CPU,
        models=(model,),
        worker=worker.name,
        threads=m.cpu.threads,
        cores=initial,
        in_flight=m.cpu.in_flight,
        most_cores=high if controlled else 0.0,
        dispatchers=config.dispatcher_count,
    )
    paths = {} if m.path is None else {model: m.path}
    return Executable(spec, host, port, paths, cgroup, config.minimum(model), high, container)

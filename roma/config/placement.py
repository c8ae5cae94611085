"""Executables that a configuration asks for, with their addresses.

A pure function of the file, so that launcher, dispatcher and supervisor agree without
communicating: each of them can be restarted alone.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from roma.config.schema import Config
from roma.config.workers import UNIX, Backend, ExecutableConfig, WorkerConfig
from roma.domain.model import Device, ExecutorSpec

CONTAINER_PORT = 8501
"""TensorFlow Serving's REST port, inside a container."""

CONTAINER_GRPC_PORT = 8500
"""TensorFlow Serving's gRPC port, inside a container."""


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
        return f"http://{self.host}:{self.port}"

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
        return self.spec.in_flight or max(1, math.ceil(self.max_cores / self.spec.threads))


def executables(config: Config) -> list[Executable]:
    """Return every executable of the deployment, in a fixed order."""
    return [e for worker in config.workers for e in on_worker(config, worker)]


def on_worker(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of one worker."""
    if worker.backend is Backend.STATIC:
        return _listed(config, worker)
    found = _started(config, worker)
    if worker.grpc_offset is None:
        return found
    return [replace(e, grpc=_grpc_address(worker, e, worker.grpc_offset)) for e in found]


def _started(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables that ROMA starts, with their REST addresses."""
    found = []
    for model in config.placed[worker.name]:
        # The GPUs' ports come first, so that adding a model later moves none of them.
        place = worker.gpus + config.slots[model]
        if worker.backend is Backend.DOCKER:
            container = container_name(config, worker, model)
            host, port = _address(worker, container, place)
            found.append(
                _cpu(config, worker, model, host=host, port=port, cgroup=None, container=container)
            )
            continue
        cgroup = f"{config.name}/{worker.name}/{model}"
        port = worker.base_port + place
        placed = _cpu(config, worker, model, host="127.0.0.1", port=port, cgroup=cgroup)
        found.append(replace(placed, socket=worker.socket(config.name, model)))
    for i in range(worker.gpus):
        container = container_name(config, worker, f"gpu{i}")
        host, port = _address(worker, container, i)
        found.append(_gpu(config, worker, i, host=host, port=port, container=container))
    return found


def container_name(config: Config, worker: WorkerConfig, what: str) -> str:
    """Return the name of a container of this deployment."""
    return f"{config.name}-{worker.name}-{what}"


def _address(worker: WorkerConfig, container: str, place: int) -> tuple[str, int]:
    """Return a container's address: its name in its network, else its published port."""
    docker = worker.containers
    if docker.network is not None:
        return container, CONTAINER_PORT
    return docker.address, worker.base_port + place


def _grpc_address(worker: WorkerConfig, executable: Executable, offset: int) -> tuple[str, int]:
    """Return the gRPC address of an executable that ROMA starts, from its published port."""
    if worker.backend is Backend.DOCKER and worker.containers.network is not None:
        return executable.host, CONTAINER_GRPC_PORT
    return executable.host, executable.port + offset


def _listed(config: Config, worker: WorkerConfig) -> list[Executable]:
    found = []
    for i, listed in enumerate(worker.executables):
        grpc = None
        if listed.grpc is not None:
            name, _, number = listed.grpc.rpartition(":")
            grpc = name, int(number)
        host, port, socket = _place(listed)
        if listed.actions is not None:
            found.append(_planned(_gpu(config, worker, i, host=host, port=port), listed))
            continue
        if listed.model is None:
            executable = _gpu(config, worker, i, host=host, port=port)
        else:
            executable = _cpu(
                config,
                worker,
                listed.model,
                host=host,
                port=port,
                cgroup=listed.cgroup,
                suffix=f".{i}",
            )
        found.append(replace(executable, grpc=grpc, socket=socket))
    return found


def _place(listed: ExecutableConfig) -> tuple[str, int, str | None]:
    """Return host and port, or the path of a Unix socket in their place."""
    url = listed.url or ""
    if url.startswith(UNIX):
        return "localhost", 0, url.removeprefix(UNIX)
    host, _, port = (listed.actions or url.removeprefix("http://")).rpartition(":")
    return host, int(port), None


def _planned(executable: Executable, listed: ExecutableConfig) -> Executable:
    """Return a listed GPU as a planned device."""
    return replace(executable, spec=replace(executable.spec, is_planned=True), token=listed.token)


def _gpu(
    config: Config,
    worker: WorkerConfig,
    i: int,
    *,
    host: str,
    port: int,
    container: str | None = None,
) -> Executable:
    """Return the executable of a GPU, which serves all models (paper §2.2)."""
    spec = ExecutorSpec(f"gpu{i}@{worker.name}", Device.GPU, tuple(config.models), worker.name)
    paths = {name: m.path for name, m in config.models.items() if m.path is not None}
    return Executable(spec, host, port, paths, None, 0.0, 0.0, container)


def _cpu(
    config: Config,
    worker: WorkerConfig,
    model: str,
    *,
    host: str,
    port: int,
    cgroup: str | None,
    container: str | None = None,
    suffix: str = "",
) -> Executable:
    m = config.models[model]
    high = m.cpu.max if m.cpu.max is not None else worker.allocatable
    spec = ExecutorSpec(
        name=f"{model}{suffix}@{worker.name}",
        device=Device.CPU,
        models=(model,),
        worker=worker.name,
        threads=m.cpu.threads,
        cores=m.cpu.initial if m.cpu.initial is not None else high,
        in_flight=m.cpu.in_flight,
    )
    paths = {} if m.path is None else {model: m.path}
    return Executable(spec, host, port, paths, cgroup, config.minimum(model), high, container)

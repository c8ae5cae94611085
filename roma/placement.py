"""Which executables a configuration asks for, and where each one listens.

A pure function of the file, so that launcher, dispatcher and supervisor agree without talking:
each of them can be restarted alone.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from roma.config import Backend, Config, WorkerConfig
from roma.model import Device, ExecutorSpec


@dataclass(frozen=True, slots=True)
class Executable:
    """One model server: what the dispatcher calls, the launcher starts, the supervisor sizes.

    `cgroup` is its path below the cgroup mount, None if its cores cannot be controlled.
    `min_cores` and `max_cores` bound its allocation; both are 0 on a GPU.
    """

    spec: ExecutorSpec
    host: str
    port: int
    paths: dict[str, Path]
    cgroup: str | None
    min_cores: float
    max_cores: float

    @property
    def name(self) -> str:
        """Its name, unique in the deployment."""
        return self.spec.name

    @property
    def url(self) -> str:
        """Its REST address."""
        return f"http://{self.host}:{self.port}"

    @property
    def concurrency(self) -> int:
        """Most requests that its in-flight limit can ever let in (1 on a GPU)."""
        if self.spec.device is Device.GPU:
            return 1
        return max(1, math.ceil(self.max_cores / self.spec.threads))


def executables(config: Config) -> list[Executable]:
    """Return every executable of the deployment, in a fixed order."""
    return [e for worker in config.workers for e in on_worker(config, worker)]


def on_worker(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of one worker."""
    if worker.backend is Backend.STATIC:
        return _listed(config, worker)
    return [
        _cpu(
            config,
            worker,
            model,
            host="127.0.0.1",
            port=worker.base_port + i,
            cgroup=f"{config.name}/{worker.name}/{model}",
        )
        for i, model in enumerate(config.models)
    ]


def _listed(config: Config, worker: WorkerConfig) -> list[Executable]:
    found = []
    for i, listed in enumerate(worker.executables):
        host, _, port = listed.url.removeprefix("http://").rpartition(":")
        if listed.model is not None:
            found.append(
                _cpu(
                    config,
                    worker,
                    listed.model,
                    host=host,
                    port=int(port),
                    cgroup=listed.cgroup,
                    suffix=f".{i}",
                )
            )
            continue
        spec = ExecutorSpec(f"gpu{i}@{worker.name}", Device.GPU, tuple(config.models), worker.name)
        found.append(Executable(spec, host, int(port), {}, None, 0.0, 0.0))
    return found


def _cpu(
    config: Config,
    worker: WorkerConfig,
    model: str,
    *,
    host: str,
    port: int,
    cgroup: str | None,
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
    )
    paths = {} if m.path is None else {model: m.path}
    return Executable(spec, host, port, paths, cgroup, m.cpu.min, high)

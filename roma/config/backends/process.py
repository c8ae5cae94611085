"""Backend `process`: `roma up` starts one local process per model, in its own cgroup."""

from dataclasses import replace

from roma.config.backends.base import StartedBackend
from roma.config.executable import Executable, on_cpu
from roma.config.topology import Topology
from roma.config.workers import BackendKind, WorkerConfig


class ProcessBackend(StartedBackend):
    """Processes of this machine."""

    kind = BackendKind.PROCESS

    def _of_model(
        self, config: Topology, worker: WorkerConfig, model: str, place: int
    ) -> Executable:
        cgroup = f"{config.name}/{worker.name}/{model}"
        port = worker.base_port + place
        placed = on_cpu(config, worker, model, host="127.0.0.1", port=port, cgroup=cgroup)
        return replace(placed, socket=worker.socket(config.name, model))

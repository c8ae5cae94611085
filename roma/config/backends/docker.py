"""Backend `docker`: one container per model, and one per GPU with all models."""

from roma.config.backends.base import StartedBackend
from roma.config.executable import Executable, on_cpu, on_gpu
from roma.config.models import ModelConfig
from roma.config.topology import Topology
from roma.config.workers import BackendKind, WorkerConfig
from roma.config.yaml_file import Fault

CONTAINER_PORT = 8501
"""TensorFlow Serving's REST port, inside a container."""

CONTAINER_GRPC_PORT = 8500
"""TensorFlow Serving's gRPC port, inside a container."""


class DockerBackend(StartedBackend):
    """Containers of a Docker engine."""

    kind = BackendKind.DOCKER

    def check_model(self, key: str, model: ModelConfig) -> None:
        """Raise Fault for a model without files, or with two places for them."""
        if model.volume is not None and model.path is not None:
            raise Fault(f"{key}.volume", model.volume, "absent where path is set")
        self._check_path(key, model)

    def _of_model(
        self, config: Topology, worker: WorkerConfig, model: str, place: int
    ) -> Executable:
        name = container_name(config, worker, model)
        host, port = _address(worker, name, place)
        return on_cpu(config, worker, model, host=host, port=port, cgroup=None, container=name)

    def _of_gpus(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        found = []
        for i in range(worker.gpus):
            container = container_name(config, worker, f"gpu{i}")
            host, port = _address(worker, container, i)
            found.append(
                on_gpu(config, worker, f"gpu{i}", host=host, port=port, container=container)
            )
        return found

    def _grpc(self, worker: WorkerConfig, executable: Executable, offset: int) -> tuple[str, int]:
        if worker.containers.network is not None:
            return executable.host, CONTAINER_GRPC_PORT
        return super()._grpc(worker, executable, offset)


def container_name(config: Topology, worker: WorkerConfig, what: str) -> str:
    """Return the name of a container of this deployment."""
    return f"{config.name}-{worker.name}-{what}"


def _address(worker: WorkerConfig, container: str, place: int) -> tuple[str, int]:
    """Return a container's address: its name in its network, else its published port."""
    docker = worker.containers
    if docker.network is not None:
        return container, CONTAINER_PORT
    return docker.published_on, worker.base_port + place

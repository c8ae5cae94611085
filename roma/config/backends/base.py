"""The interface of a backend.

What a backend needs elsewhere is found by its kind, too: its actuator in
`supervisor.live.actuation`, its launcher in `roma.deploy.launchers`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar, Protocol

from roma.config.executable import Executable
from roma.config.models import ModelConfig
from roma.config.topology import Topology
from roma.config.workers import BackendKind, ExecutableConfig, WorkerConfig
from roma.config.yaml_file import Fault


class ExecutableSource(Protocol):
    """Lists the executables of one worker as they come, move and go."""

    def lists(self) -> AsyncIterator[tuple[ExecutableConfig, ...]]:
        """Yield the executables of now, and again after each change; for ever.

        Each has a `name` that stays while it lives, and the address at which it is ready. What it
        cannot reach for a while it retries; what it raises ends the program.
        """
        ...


class WorkerSource(Protocol):
    """Lists the workers for which one entry of roma.yaml stands, as they come and go."""

    def lists(self) -> AsyncIterator[tuple[WorkerConfig, ...]]:
        """Yield the workers of now with their executables, and again after each change; for ever.

        Faults as in `ExecutableSource.lists`.
        """
        ...


class Backend(ABC):
    """Place where the model servers of a worker run; stateless."""

    kind: BackendKind
    discovers: ClassVar[bool] = False
    """True if a source lists the executables; otherwise the file determines them."""

    @abstractmethod
    def executables(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        """Return the executables of a worker with their addresses, in a fixed order.

        Launcher, dispatcher and supervisor call it without communicating, so it depends on nothing
        but the file and what a source listed.
        """

    def source(
        self, config: Topology, worker: WorkerConfig
    ) -> ExecutableSource | WorkerSource | None:
        """Return the source of a worker's executables, or of the workers for which it stands.

        None unless the backend `discovers` them.
        """
        return None

    def check_model(self, key: str, model: ModelConfig) -> None:  # noqa: B027 - no check by default
        """Raise Fault for a model that is placed here and cannot be served; `key` is its key."""


class StartedBackend(Backend):
    """A backend whose model servers ROMA starts, at counted ports."""

    def executables(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        """Return one executable for each model placed there, and one for each GPU."""
        # The GPUs' ports come first, so that adding a model later moves none of them.
        found = [
            self._of_model(config, worker, model, worker.gpus + config.slots[model])
            for model in config.placed[worker.name]
        ]
        found += self._of_gpus(config, worker)
        if worker.grpc_offset is None:
            return found
        return [replace(e, grpc=self._grpc(worker, e, worker.grpc_offset)) for e in found]

    @abstractmethod
    def _of_model(
        self, config: Topology, worker: WorkerConfig, model: str, place: int
    ) -> Executable:
        """Return the executable of a model; `place` is its offset among the worker's ports."""

    def _of_gpus(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        """Return the executables of the worker's GPUs; none by default."""
        return []

    def _grpc(self, worker: WorkerConfig, executable: Executable, offset: int) -> tuple[str, int]:
        """Return the gRPC address of an executable."""
        return executable.host, executable.port + offset

    def check_model(self, key: str, model: ModelConfig) -> None:
        """Raise Fault for a model without files, and for keys that only containers support."""
        for name in ("memory", "volume"):
            if (value := getattr(model, name)) is not None:
                raise Fault(f"{key}.{name}", value, "absent without backend docker")
        self._check_path(key, model)

    def _check_path(self, key: str, model: ModelConfig) -> None:
        if model.path is None and model.volume is None:
            raise Fault(f"{key}.path", None, f"set for backend {self.kind}")

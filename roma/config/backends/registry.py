"""The backends by kind."""

from typing import Final

from roma.config.backends.base import Backend
from roma.config.backends.docker import DockerBackend
from roma.config.backends.kubernetes import KubernetesBackend
from roma.config.backends.process import ProcessBackend
from roma.config.backends.static import StaticBackend
from roma.config.workers import BackendKind, WorkerConfig

BACKENDS: Final[dict[BackendKind, Backend]] = {
    backend.kind: backend
    for backend in (ProcessBackend(), DockerBackend(), StaticBackend(), KubernetesBackend())
}


def of(worker: WorkerConfig) -> Backend:
    """Return the backend of a worker."""
    return BACKENDS[worker.backend]

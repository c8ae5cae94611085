"""Backend `static`: model servers started outside ROMA; roma.yaml lists their addresses."""

from dataclasses import replace

from roma.config.backends.base import Backend
from roma.config.executable import Executable, on_cpu, on_gpu
from roma.config.topology import Topology
from roma.config.workers import UNIX, BackendKind, ExecutableConfig, WorkerConfig


class StaticBackend(Backend):
    """Model servers that others start."""

    kind = BackendKind.STATIC

    def executables(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        """Return the executables that the file lists."""
        return [
            _executable(config, worker, name, listed)
            for name, listed in zip(worker.executable_names, worker.executables, strict=True)
        ]


def _executable(
    config: Topology, worker: WorkerConfig, name: str, listed: ExecutableConfig
) -> Executable:
    host, port, socket = _place(listed)
    if listed.model is None:
        executable = on_gpu(config, worker, name, host=host, port=port)
        is_planned = listed.actions is not None
        spec = replace(executable.spec, is_planned=is_planned)
        executable = replace(executable, spec=spec, token=listed.token)
    else:
        model, cgroup = listed.model, listed.cgroup
        executable = on_cpu(config, worker, model, host=host, port=port, cgroup=cgroup, name=name)
    grpc = None
    if listed.grpc is not None:
        grpc_host, _, grpc_port = listed.grpc.rpartition(":")
        grpc = grpc_host, int(grpc_port)
    return replace(executable, grpc=grpc, socket=socket)


def _place(listed: ExecutableConfig) -> tuple[str, int, str | None]:
    """Return host and port, or the path of a Unix socket in their place."""
    url = listed.url or ""
    if url.startswith(UNIX):
        return "localhost", 0, url.removeprefix(UNIX)
    host, _, port = (listed.actions or url.removeprefix("http://")).rpartition(":")
    return host, int(port), None

"""Backend `kubernetes`: model servers in pods of nodes, found by their labels.

A worker is a node, an executable is a pod. Deployments start the pods and replace them; ROMA finds
them, sends them requests and moves their CPU limits.
"""

from dataclasses import replace

from roma.config.backends.base import Backend, ExecutableSource, WorkerSource
from roma.config.backends.pod import PodExecutable
from roma.config.executable import Executable, on_cpu
from roma.config.topology import Topology
from roma.config.workers import BackendKind, WorkerConfig


class KubernetesBackend(Backend):
    """Pods of a node."""

    kind = BackendKind.KUBERNETES
    discovers = True

    def executables(self, config: Topology, worker: WorkerConfig) -> list[Executable]:
        """Return the pods that the source has listed."""
        found = []
        for listed in worker.executables:
            assert isinstance(listed, PodExecutable)
            assert listed.url is not None
            assert listed.model is not None
            host, _, port = listed.url.removeprefix("http://").rpartition(":")
            host = host.strip("[]")  # of an IPv6 address, which only a URL has in brackets
            name = listed.name
            executable = on_cpu(
                config,
                worker,
                listed.model,
                host=host,
                port=int(port),
                cgroup=None,
                container=name,
                name=name,
            )
            # A limit below the model's minimum is better than one that the API server refuses.
            low = max(min(executable.min_cores, listed.most), listed.least)
            high = max(min(executable.max_cores, listed.most), low)
            grpc = None if worker.pods.grpc_port is None else (host, worker.pods.grpc_port)
            spec = replace(executable.spec, most_cores=high)
            found.append(replace(executable, spec=spec, min_cores=low, max_cores=high, grpc=grpc))
        return found

    def source(self, config: Topology, worker: WorkerConfig) -> ExecutableSource | WorkerSource:
        """Return the source that watches the pods, and the nodes where the file names none.

        Raises ConfigError for unusable credentials.
        """
        # An import that is not used must not delay the start.
        from roma.config.backends.pod_source import NodePool, PodSource  # noqa: PLC0415

        return NodePool(config, worker) if worker.is_pool else PodSource(config, worker)

"""The pods of one worker, as an executable source."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection

from roma.config.backends.pod import PodExecutable, executable_name
from roma.config.topology import Topology
from roma.config.workers import ExecutableConfig, WorkerConfig
from roma.domain.errors import naming
from roma.domain.model import Device
from roma.kubernetes.client import Client
from roma.kubernetes.credentials import find
from roma.kubernetes.pods import MODEL_LABEL, Pod
from roma.kubernetes.watch import PodWatch

log = logging.getLogger(__name__)


class PodSource:
    """The pods of one worker, as an executable source; `watch` has them as they are."""

    def __init__(self, config: Topology, worker: WorkerConfig) -> None:
        settings = worker.pods
        with naming(f"workers.{worker.name}.kubernetes.kubeconfig"):
            credentials = find(settings.kubeconfig, settings.context)
        assert worker.node is not None
        self._models = frozenset(config.models)
        self._worker = worker
        self._said: set[str] = set()
        self.watch = PodWatch(
            Client(credentials),
            settings.namespace or credentials.namespace,
            settings.container,
            labels=settings.selector,
            fields=f"spec.nodeName={worker.node}",
        )

    async def lists(self) -> AsyncIterator[tuple[ExecutableConfig, ...]]:
        """Yield the pods that can be served, in the order of their names, for ever."""
        running = asyncio.create_task(self.watch.run())
        try:
            async for pods in self.watch.changes(running):
                served = sorted((p for p in pods.values() if p.is_served), key=lambda p: p.name)
                self._tell(pods.values())
                yield tuple(self._executable(pod) for pod in served)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.watch.client.close()

    def _executable(self, pod: Pod) -> PodExecutable:
        settings = self._worker.pods
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        # Not validated: an address of the API server's is no text that a person wrote.
        return PodExecutable.model_construct(
            name=executable_name(pod.name),
            url=f"http://{host}:{settings.port}",
            model=pod.model,
            device=Device.CPU,
            least=pod.least / 1000,
        )

    def _tell(self, pods: Collection[Pod]) -> None:
        """Say once what will not be served or controlled, and why."""
        key = f"workers.{self._worker.name}"
        found = {
            f"pod {pod.name}: label {MODEL_LABEL} = {pod.model or 'absent'}: is no model of the "
            "roma.yaml that this program began with"
            for pod in pods
            if pod.model not in self._models
        }
        if not pods:
            found = {
                f"{key}.kubernetes.selector = {self._worker.pods.selector}: no pod of namespace "
                f"{self.watch.namespace} on node {self._worker.node} has these labels"
            }
        for line in sorted(found - self._said):
            log.warning("%s", line)
        self._said = found

"""The pods of one node, or of all nodes with some labels, as sources of executables."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any

from roma.config.backends.pod import NodeWorker, PodExecutable, own_name
from roma.config.topology import Topology
from roma.config.workers import ExecutableConfig, WorkerConfig
from roma.domain.errors import naming
from roma.domain.model import Device
from roma.kubernetes.client import Client
from roma.kubernetes.credentials import find
from roma.kubernetes.limit_range import NO_BOUNDS, CpuBounds
from roma.kubernetes.pods import MODEL_LABEL, Pod
from roma.kubernetes.watch import ObjectWatch, PodWatch, changes, node_watch
from roma.telemetry.tasks import cancel

log = logging.getLogger(__name__)


class ClusterSource:
    """A source of a worker's pods; `watch` has them as they are, `fields` selects among them."""

    def __init__(self, config: Topology, worker: WorkerConfig, fields: str = "") -> None:
        self._executables = _Executables(worker)
        self.bounds = NO_BOUNDS
        """Bounds of the namespace on CPU limits, as far as they are known."""
        self.unfit = ""
        """Why the API server cannot resize pods; "" if it can, or if that is not known."""
        self.unread = ""
        """Why the bounds are unknown as yet; "" if they are known, or cannot be."""
        self.watch = _pods(worker, fields)
        self._notices = _Notices(config, worker, self.watch.namespace)


class PodSource(ClusterSource):
    """The pods of a worker's node, as an executable source."""

    def __init__(self, config: Topology, worker: WorkerConfig) -> None:
        assert worker.node is not None
        super().__init__(config, worker, f"spec.nodeName={worker.node}")
        self._node = worker.node

    async def lists(self) -> AsyncIterator[tuple[ExecutableConfig, ...]]:
        """Yield the pods that can be served, in the order of their names, for ever."""
        async with _running([self.watch]) as running:
            async for _ in changes([self.watch], running):
                pods = self.watch.pods.values()
                self._notices.tell(pods, f"node {self._node}")
                yield self._executables.of(pods, self.bounds)[self._node]


class NodePool(ClusterSource):
    """The nodes that match a worker's labels, as workers with their pods."""

    def __init__(self, config: Topology, worker: WorkerConfig) -> None:
        assert worker.nodeSelector is not None
        super().__init__(config, worker)
        self._worker = worker
        self._is_alone = len(config.discovered) == 1
        self._listed: dict[str, NodeWorker] = {}
        self._labels = ",".join(f"{key}={value}" for key, value in worker.nodeSelector.items())
        key = f"workers.{worker.name}.nodeSelector"
        self._nodes = node_watch(self.watch.client, self._labels, key)

    async def lists(self) -> AsyncIterator[tuple[WorkerConfig, ...]]:
        """Yield a worker for each node, in the order of their names, for ever."""
        watches: Sequence[ObjectWatch[Any]] = (self.watch, self._nodes)
        async with _running(watches) as running:
            async for _ in changes(watches, running):
                pods, nodes = self.watch.pods.values(), sorted(self._nodes.objects)
                self._notices.tell(pods, f"the nodes with {self._labels}", self._warnings(nodes))
                found = self._executables.of(pods, self.bounds)
                self._listed = {node: self._node_worker(node, found[node]) for node in nodes}
                yield tuple(self._listed.values())

    def _node_worker(self, node: str, own: tuple[ExecutableConfig, ...]) -> NodeWorker:
        """Return a node as a worker, the one that was listed last unless its pods have changed."""
        known = self._listed.get(node)
        if known is not None and known.executables == own:
            return known
        named = {"name": own_name(node), "node": node, "nodeSelector": None}
        # Not validated: a node's name is no text that a person wrote.
        return NodeWorker.model_construct(
            **{**dict(self._worker), **named, "executables": own, "pool": self._worker.name}
        )

    def _warnings(self, nodes: Collection[str]) -> set[str]:
        found = {
            f"pod {pod.name} is on node {pod.node}, which lacks the labels {self._labels}"
            for pod in self.watch.pods.values()
            # With several entries it may be another one's.
            if self._is_alone and pod.node and pod.node not in nodes
        }
        if not nodes:
            key = f"workers.{self._worker.name}.nodeSelector"
            found.add(f"{key} = {self._labels}: no node has these labels")
        return found


class _Notices:
    """Says once what will not be served or controlled, and why."""

    def __init__(self, config: Topology, worker: WorkerConfig, namespace: str) -> None:
        self._models = frozenset(config.models)
        self._namespace = namespace
        self._selector = f"workers.{worker.name}.kubernetes.selector = {worker.pods.selector}"
        self._said: set[str] = set()

    def tell(self, pods: Collection[Pod], where: str, more: Iterable[str] = ()) -> None:
        found = {
            f"pod {pod.name}: label {MODEL_LABEL} = {pod.model or 'absent'}: is no model of the "
            "roma.yaml that this program began with"
            for pod in pods
            if pod.model not in self._models
        }
        if not pods:
            # An API server answers alike for a namespace that is not there.
            where = f"{where} in namespace {self._namespace}"
            found = {f"{self._selector}: no pod on {where} has these labels"}
        found |= set(more)
        for line in sorted(found - self._said):
            log.warning("%s", line)
        self._said = found


def _pods(worker: WorkerConfig, fields: str) -> PodWatch:
    """Return a watch of a worker's pods; raise ConfigError for unusable credentials."""
    settings = worker.pods
    with naming(f"workers.{worker.name}.kubernetes.kubeconfig"):
        credentials = find(settings.kubeconfig, settings.context)
    return PodWatch(
        Client(credentials),
        settings.namespace or credentials.namespace,
        settings.container,
        labels=settings.selector,
        fields=fields,
        key=f"workers.{worker.name}.kubernetes",
    )


@contextlib.asynccontextmanager
async def _running(
    watches: Sequence[ObjectWatch[Any]],
) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Run watches of one client until the block ends, and close the client."""
    running = [asyncio.create_task(watch.run()) for watch in watches]
    try:
        yield running
    finally:
        await cancel(running)
        await watches[0].client.close()


class _Executables:
    """The pods of a worker's entry that can be served, as executables by node.

    A limit moves every second, which no executable shows: one that is as before is the same object,
    since making hundreds anew for each event would cost more than controlling them.
    """

    def __init__(self, worker: WorkerConfig) -> None:
        self._port = worker.pods.port
        self._known: dict[tuple[object, ...], PodExecutable] = {}

    def of(
        self, pods: Iterable[Pod], bounds: CpuBounds
    ) -> Mapping[str, tuple[ExecutableConfig, ...]]:
        """Return the executables of each node, () for others, in the order of their names."""
        known, self._known = self._known, {}
        found: dict[str, list[ExecutableConfig]] = {}
        for pod in sorted((pod for pod in pods if pod.is_served), key=lambda pod: pod.name):
            key = (pod.name, pod.ip, pod.model, pod.request, bounds)
            one = self._known[key] = known.get(key) or self._executable(pod, bounds)
            found.setdefault(pod.node, []).append(one)
        return defaultdict(tuple, {node: tuple(own) for node, own in found.items()})

    def _executable(self, pod: Pod, bounds: CpuBounds) -> PodExecutable:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        # Not validated: an address of the API server's is no text that a person wrote.
        return PodExecutable.model_construct(
            name=own_name(pod.name),
            url=f"http://{host}:{self._port}",
            model=pod.model,
            device=Device.CPU,
            least=max(pod.least, bounds.least) / 1000,
            most=bounds.highest(pod.request) / 1000,
        )

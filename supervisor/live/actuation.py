"""Actuators of a worker, by the kind of its backend."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from roma.config.schema import Config
from roma.config.sources import Sources
from roma.config.workers import BackendKind, ServerKind, WorkerConfig
from roma.domain.errors import ActuationNotPermitted, ConfigError
from supervisor.actuators.base import Actuator
from supervisor.actuators.cgroup import CgroupActuator
from supervisor.actuators.docker import DockerActuator, Meters
from supervisor.actuators.meters import EngineMeters, FileMeters
from supervisor.actuators.recording import RecordingActuator
from supervisor.assembly import controlled
from supervisor.broker.broker import Broker, Containers
from supervisor.broker.client import calling
from supervisor.broker.engine import connected
from supervisor.broker.server import SUPERVISOR, run_dir
from supervisor.cgroups import container_hierarchy, find_hierarchy
from supervisor.claims import Claims

if TYPE_CHECKING:
    from roma.config.backends.pod_source import ClusterSource
    from roma.kubernetes.watch import PodWatch
    from supervisor.actuators.kubelet_meters import KubeletMeters
    from supervisor.actuators.pod_meters import ServerMeters

START_LIMIT: Final = 1.0
"""Seconds that an API server may take for a question at the start."""

LEARN_AGAIN: Final = 10.0
"""Seconds after which an API server that did not answer is asked for its LimitRanges again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActuationContext:
    """Objects of this program that actuators share.

    `may_act` is false while another supervisor leads.
    """

    claims: Claims
    sources: Sources
    may_act: Callable[[], bool] = lambda: True


Mode = Callable[[], str]
"""Returns `control`, `dry-run`, or `observe-only`, `holding` or `standby` with the reason."""

Actuation = Callable[
    [Config, WorkerConfig, ActuationContext], AbstractAsyncContextManager[tuple[Actuator, Mode]]
]
"""Yields the best permitted actuator of a worker and the mode it implies; raises TakenError."""


def _control() -> str:
    return "control"


def _dry_run() -> str:
    return "dry-run"


@contextlib.asynccontextmanager
async def _containers(
    config: Config, worker: WorkerConfig, _: ActuationContext
) -> AsyncIterator[tuple[Actuator, Mode]]:
    """Yield an actuator on the containers of an engine."""
    docker = worker.containers
    # A third of a period: a hung engine must not delay the tick after it.
    timeout = config.period(worker) / 3
    async with contextlib.AsyncExitStack() as stack:
        containers: Containers
        if docker.direct:
            log.warning(
                "workers.%s.docker.direct: this supervisor holds the engine's socket, which is "
                "root on the host, and nobody grants safe shares if it dies",
                worker.name,
            )
            engine = await stack.enter_async_context(connected(docker))
            containers = Broker(config, worker, engine, asyncio.get_running_loop().time)
        else:
            path = run_dir(config, worker) / SUPERVISOR
            containers = await stack.enter_async_context(calling(path, timeout))
        meters = _meters(config, worker, containers)
        stack.push_async_callback(meters.close)
        actuator = DockerActuator(containers, meters, timeout=timeout)
        if config.control.dry_run:
            yield RecordingActuator(actuator), _dry_run
        else:
            yield actuator, _control


def _meters(config: Config, worker: WorkerConfig, containers: Containers) -> Meters:
    docker = worker.containers
    names = [e.name for e in controlled(config, worker)]
    if docker.remote:
        return EngineMeters(containers, names, period=config.period(worker))
    hierarchy = container_hierarchy(docker.cgroup_root)
    return FileMeters(containers, hierarchy, names, period=config.control.cfs_period)


@contextlib.asynccontextmanager
async def _cgroups(
    config: Config, worker: WorkerConfig, context: ActuationContext
) -> AsyncIterator[tuple[Actuator, Mode]]:
    yield _on_cgroups(config, worker, context.claims)


def _on_cgroups(config: Config, worker: WorkerConfig, claims: Claims) -> tuple[Actuator, Mode]:
    """Return an actuator on cgroups and its mode; raise TakenError."""
    try:
        hierarchy = find_hierarchy()
        if not worker.is_local:  # others made its groups, and not below that of this program
            hierarchy = container_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        mode = f"observe-only: {error}"
        return RecordingActuator(), lambda: mode
    groups = {
        e.name: hierarchy.group(e.cgroup, config.control.cfs_period, config.control.cfs_burst)
        for e in controlled(config, worker)
        if e.cgroup is not None
    }
    if config.control.dry_run:
        return RecordingActuator(CgroupActuator(groups)), _dry_run
    claims.take(groups.values())
    return CgroupActuator(groups, claims.take), _control


def _pod_meters(
    worker: WorkerConfig, watch: "PodWatch", period: float
) -> "ServerMeters | KubeletMeters":
    """Return the meters of a worker's pods; raise ConfigError for an authority that is none."""
    # Imports that are not used must not delay the start.
    from supervisor.actuators.kubelet_meters import KubeletMeters  # noqa: PLC0415
    from supervisor.actuators.pod_meters import ServerMeters  # noqa: PLC0415

    settings = worker.pods
    if settings.server is ServerKind.ROMA:
        return ServerMeters(port=settings.port, period=period)
    credentials, tls = watch.client.credentials, watch.client.credentials.tls
    if settings.kubelet_ca is not None:
        try:
            tls = credentials.trusting(settings.kubelet_ca)
        except OSError as error:  # SSLError is one
            key = f"workers.{worker.name}.kubernetes.kubelet_ca"
            raise ConfigError(f"{key} = {settings.kubelet_ca}: {error}") from error
    assert worker.node is not None
    return KubeletMeters(
        credentials,
        tls,
        node=worker.node,
        port=settings.kubelet_port,
        namespace=watch.namespace,
        container=settings.container,
        period=period,
    )


async def prepare(config: Config, sources: Sources) -> None:
    """Learn what sources must know of executables before they list any."""
    found = list(_pod_sources(config, sources))
    # All at once: where the API server does not answer, each question takes as long as it may, and
    # a supervisor of many nodes would be restarted before it listens.
    await asyncio.gather(
        _learn_bounds(config, found), *(_learn_version(source) for source in found)
    )


async def learn_late(config: Config, sources: Sources) -> None:
    """Ask again for the LimitRanges that no answer came about, until all are known."""
    while unknown := [source for source in _pod_sources(config, sources) if source.unread]:
        await asyncio.sleep(LEARN_AGAIN)
        await _learn_bounds(config, unknown)


def _pod_sources(config: Config, sources: Sources) -> "Iterator[ClusterSource]":
    for worker in config.workers:
        if worker.backend is BackendKind.KUBERNETES:
            yield cast("ClusterSource", sources.of(worker))


async def _learn_version(source: "ClusterSource") -> None:
    """Ask if the API server can resize pods."""
    source.unfit = await source.watch.client.too_old(START_LIMIT)


async def _learn_bounds(config: Config, sources: "Sequence[ClusterSource]") -> None:
    """Read the LimitRanges of the pods' namespaces."""
    said = await asyncio.gather(*(_read_bounds(config, source) for source in sources))
    for level, line in dict.fromkeys(line for lines in said for line in lines):  # once for all
        log.log(level, "%s", line)


async def _read_bounds(config: Config, source: "ClusterSource") -> list[tuple[int, str]]:
    """Read the LimitRanges of the pods' namespace; return what is to be said of them."""
    # Imports that are not used must not delay the start.
    from roma.kubernetes.client import ApiServerError  # noqa: PLC0415
    from roma.kubernetes.limit_range import NO_BOUNDS, cpu_bounds  # noqa: PLC0415

    namespace = source.watch.namespace
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    known, source.unread = source.unread, ""
    try:
        found = source.bounds = cpu_bounds(await source.watch.client.get(path, START_LIMIT))
    except (ApiServerError, ValueError) as error:
        words = f"the LimitRanges of namespace {namespace} are unknown: {error}"
        if isinstance(error, ApiServerError) and error.is_passing:
            source.unread = words
        return [] if words == known else [(logging.WARNING, words)]
    if found == NO_BOUNDS:
        return []
    words = f"namespace {namespace}: a CPU limit must be {found}, and no pod gets another"
    said = [(logging.INFO, words)]
    for name, model in config.models.items():
        bounded = {"min": config.minimum(name), "max": model.cpu.max or 0.0}
        said += [
            (logging.WARNING, f"models.{name}.cpu.{key} = {cores:g}: must be {found}")
            for key, cores in bounded.items()
            if 1000 * cores > found.most
        ]
    return said


@contextlib.asynccontextmanager
async def _pods(
    config: Config, worker: WorkerConfig, context: ActuationContext
) -> AsyncIterator[tuple[Actuator, Mode]]:
    """Yield an actuator on the pods of a node, whichever there are."""
    # An import that is not used must not delay the start.
    from supervisor.actuators.pods import PodActuator  # noqa: PLC0415

    source = cast("ClusterSource", context.sources.of(worker))
    period, watch = config.period(worker), source.watch
    meters = _pod_meters(worker, watch, period)
    actuator = PodActuator(
        watch,
        meters,
        worker=worker.name,
        node=worker.node,
        container=worker.pods.container,
        period=period,
        bounds=lambda: source.bounds,  # they may be learnt late
        may_act=context.may_act,
    )

    def mode() -> str:
        if watch.away_since is not None:
            away = asyncio.get_running_loop().time() - watch.away_since
            return f"holding since {away:.0f} s: {watch.trouble}"
        return "control" if context.may_act() else "standby: this supervisor holds no lease"

    try:
        if config.control.dry_run:
            yield RecordingActuator(actuator), _dry_run
        elif why := source.unfit:
            log.warning("observe-only: %s", why)
            yield RecordingActuator(actuator), lambda: f"observe-only: {why}"
        else:
            yield actuator, mode
    finally:
        await actuator.close()
        await meters.close()


ACTUATION: Final[dict[BackendKind, Actuation]] = {
    BackendKind.PROCESS: _cgroups,
    BackendKind.STATIC: _cgroups,
    BackendKind.DOCKER: _containers,
    BackendKind.KUBERNETES: _pods,
}


def actuation(
    config: Config, worker: WorkerConfig, context: ActuationContext
) -> AbstractAsyncContextManager[tuple[Actuator, Mode]]:
    """Yield the best permitted actuator and the mode it implies; raise TakenError."""
    return ACTUATION[worker.backend](config, worker, context)

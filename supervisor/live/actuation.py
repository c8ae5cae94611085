"""Actuators of a worker, by the kind of its backend."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from roma.config.schema import Config
from roma.config.workers import BackendKind, WorkerConfig
from roma.domain.errors import ActuationNotPermitted
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

log = logging.getLogger(__name__)

Actuation = Callable[
    [Config, WorkerConfig, Claims], AbstractAsyncContextManager[tuple[Actuator, str]]
]
"""Yields the best permitted actuator of a worker and the mode it implies; raises TakenError."""


@contextlib.asynccontextmanager
async def _containers(
    config: Config, worker: WorkerConfig, _: Claims
) -> AsyncIterator[tuple[Actuator, str]]:
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
        stack.callback(meters.close)
        actuator = DockerActuator(containers, meters, timeout=timeout)
        if config.control.dry_run:
            yield RecordingActuator(actuator), "dry-run"
        else:
            yield actuator, "control"


def _meters(config: Config, worker: WorkerConfig, containers: Containers) -> Meters:
    docker = worker.containers
    names = [e.name for e in controlled(config, worker)]
    if docker.remote:
        return EngineMeters(containers, names, period=config.period(worker))
    hierarchy = container_hierarchy(docker.cgroup_root)
    return FileMeters(containers, hierarchy, names, period=config.control.cfs_period)


@contextlib.asynccontextmanager
async def _cgroups(
    config: Config, worker: WorkerConfig, claims: Claims
) -> AsyncIterator[tuple[Actuator, str]]:
    yield build_actuator(config, worker, claims)


def build_actuator(config: Config, worker: WorkerConfig, claims: Claims) -> tuple[Actuator, str]:
    """Return an actuator on cgroups of our own making and its mode; raise TakenError."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return RecordingActuator(), f"observe-only: {error}"
    groups = {
        e.name: hierarchy.group(e.cgroup, config.control.cfs_period, config.control.cfs_burst)
        for e in controlled(config, worker)
        if e.cgroup is not None
    }
    actuator = CgroupActuator(groups)
    if config.control.dry_run:
        return RecordingActuator(actuator), "dry-run"
    claims.take(groups.values())
    return actuator, "control"


ACTUATION: Final[dict[BackendKind, Actuation]] = {
    BackendKind.PROCESS: _cgroups,
    BackendKind.STATIC: _cgroups,
    BackendKind.DOCKER: _containers,
}


def actuation(
    config: Config, worker: WorkerConfig, claims: Claims
) -> AbstractAsyncContextManager[tuple[Actuator, str]]:
    """Yield the best permitted actuator and the mode it implies; raise TakenError."""
    return ACTUATION[worker.backend](config, worker, claims)

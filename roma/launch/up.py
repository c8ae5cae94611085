"""`roma up`: executables, dispatcher and supervisors on this machine, started and stopped together.

Each is a program of its own: a pause or a crash of one never stops the others. Whatever ends the
launcher, no process and no cgroup stays behind: the kernel kills its children, the reaper removes
their cgroups. Containers go when it stops; if it is killed, they stay (`launch/containers.py`).
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from roma.config import Config
from roma.errors import ActuationNotPermitted, LaunchError
from roma.launch.child import GRACE, Child
from roma.launch.containers import containers
from roma.launch.servers import cgroups, model_server
from roma.placement import Executable, on_worker
from roma.workers import Backend
from supervisor.actuators.cgroup import Group, Hierarchy, find_hierarchy

log = logging.getLogger(__name__)


class Deployment:
    """The running programs of one configuration, by name."""

    def __init__(
        self, executables: dict[str, Child], dispatcher: Child, supervisors: dict[str, Child]
    ) -> None:
        self.executables = executables
        self.dispatcher = dispatcher
        self.supervisors = supervisors
        self.brokers: list[Child] = []

    @property
    def children(self) -> list[Child]:
        """In the order in which they are stopped: clients first, model servers last."""
        return [self.dispatcher, *self.supervisors.values(), *self.executables.values()]

    async def failed(self) -> LaunchError:
        """Wait until a program gives up for good; return why."""
        done, _ = await asyncio.wait(
            [child.fatal for child in (*self.children, *self.brokers)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        return done.pop().result()


@contextlib.asynccontextmanager
async def deployed(
    config: Config, file: Path, *, log_dir: Path | None = None
) -> AsyncIterator[Deployment]:
    """Run everything that `config` (read from `file`) puts on this machine until the block ends."""
    docker = [w for w in config.workers if w.backend is Backend.DOCKER]
    local = [
        e
        for worker in config.workers
        if worker.backend is Backend.PROCESS
        for e in on_worker(config, worker)
    ]
    hierarchy = _permitted() if local else None
    async with contextlib.AsyncExitStack() as stack:
        groups: dict[str, Group] = {}
        if hierarchy is not None:
            groups = await stack.enter_async_context(cgroups(config, hierarchy, local))
        brokers = [
            await stack.enter_async_context(containers(config, worker, file, log_dir))
            for worker in docker
        ]
        deployment = _deployment(config, file, local, groups, log_dir)
        deployment.brokers = [broker for broker in brokers if broker is not None]
        try:
            for child in reversed(deployment.children):
                child.start()
            yield deployment
        finally:
            await deployment.dispatcher.stop()
            await asyncio.gather(*(child.stop() for child in deployment.supervisors.values()))
            for group in groups.values():
                group.lift()  # nobody waits for a model server to end on a tenth of a core
            await asyncio.gather(*(child.stop() for child in deployment.executables.values()))


async def run(config: Config, file: Path) -> None:
    """Run a deployment until SIGTERM or SIGINT, or until a program of it gives up."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with deployed(config, file) as deployment:
        g = config.gateway
        log.info("models: http://%s:%d/v1/models/{%s}", g.host, g.port, ",".join(config.models))
        failed = asyncio.create_task(deployment.failed())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()
        log.info("stopping")


def _permitted() -> Hierarchy | None:
    """Return where quotas may be set; where they may not, say so once and go on without."""
    try:
        return find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return None


def _deployment(
    config: Config,
    file: Path,
    local: list[Executable],
    groups: Mapping[str, Group],
    log_dir: Path | None,
) -> Deployment:
    most, drain = config.gateway.max_body_bytes, config.gateway.drain_timeout
    return Deployment(
        {e.name: model_server(e, groups.get(e.name), most, log_dir) for e in local},
        _program("dispatcher", ["dispatcher", str(file)], log_dir, grace=drain + GRACE),
        {
            w.name: _program(
                f"supervisor.{w.name}", ["supervisor", str(file), "--worker", w.name], log_dir
            )
            for w in config.workers
        },
    )


def _program(
    name: str, arguments: list[str], log_dir: Path | None, *, grace: float = GRACE
) -> Child:
    return Child(name, [sys.executable, "-m", "roma", *arguments], log_dir=log_dir, grace=grace)

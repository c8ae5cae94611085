"""`roma supervisor`: one worker's supervisor as a program."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator

from aiohttp import ClientSession, web

from roma.config import Config
from roma.errors import ActuationNotPermitted, LaunchError
from roma.workers import Backend, WorkerConfig
from supervisor.actuators.base import Actuator
from supervisor.actuators.cgroup import CgroupActuator, container_hierarchy, find_hierarchy
from supervisor.actuators.docker import DockerActuator
from supervisor.actuators.recording import RecordingActuator
from supervisor.assembly import build_core, controlled
from supervisor.broker.broker import Broker, Containers
from supervisor.broker.client import calling
from supervisor.broker.engine import connected
from supervisor.broker.server import SUPERVISOR, run_dir
from supervisor.live import api
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def actuation(config: Config, worker: WorkerConfig) -> AsyncIterator[tuple[Actuator, str]]:
    """Yield the best actuator that is permitted here, and the mode it means."""
    if worker.backend is not Backend.DOCKER:
        yield build_actuator(config, worker)
        return
    docker = worker.containers
    # A third of a period: a hung engine must not delay the tick after it.
    timeout = config.control.period / 3
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
        actuator = DockerActuator(
            containers,
            container_hierarchy(docker.cgroup_root),
            [e.name for e in controlled(config, worker)],
            period=config.control.cfs_period,
            timeout=timeout,
        )
        if config.control.dry_run:
            yield RecordingActuator(actuator), "dry-run"
        else:
            yield actuator, "control"


def build_actuator(config: Config, worker: WorkerConfig) -> tuple[Actuator, str]:
    """Return an actuator on cgroups of our own making, and the mode it means."""
    try:
        hierarchy = find_hierarchy()
    except ActuationNotPermitted as error:
        log.warning("observe-only: CPU quotas cannot be changed here: %s", error)
        return RecordingActuator(), f"observe-only: {error}"
    actuator = CgroupActuator(
        {
            e.name: hierarchy.group(e.cgroup, config.control.cfs_period)
            for e in controlled(config, worker)
            if e.cgroup is not None
        }
    )
    if config.control.dry_run:
        return RecordingActuator(actuator), "dry-run"
    return actuator, "control"


async def run(config: Config, worker: WorkerConfig) -> None:
    """Control until SIGTERM or SIGINT; the last allocation stands afterwards.

    With a broker it stands until the lease runs out.
    """
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    control, port = config.control, config.control_port(worker)
    async with ClientSession() as session, actuation(config, worker) as (actuator, mode):
        # Half a period: a late answer must not delay the tick after it.
        peers = [Peer(session, url, control.period / 2) for url in config.dispatcher_urls]
        loop = ControlLoop(
            build_core(config, worker), actuator, peers, worker=worker.name, period=control.period
        )
        runner = web.AppRunner(
            api.application(loop, worker=worker.name, mode=mode), access_log=None
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, control.host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise LaunchError(
                f"control.port = {port}: cannot listen on {control.host}: {error}"
            ) from error
        log.info(
            "supervisor of worker %s controls %s cores (%s)", worker.name, worker.allocatable, mode
        )
        ticking = asyncio.create_task(loop.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([ticking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if ticking.done():
            ticking.result()  # a bug ended the loop: let it be seen, and the launcher restart us
        ticking.cancel()
        await runner.cleanup()

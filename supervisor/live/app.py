"""`roma supervisor`: one worker's supervisor as a program."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from roma.config.reload import reloads
from roma.config.schema import Config
from roma.config.watched_file import keep_looking
from roma.config.workers import Backend, WorkerConfig
from roma.domain.errors import ActuationNotPermitted, TakenError
from roma.security import exposure, peers
from roma.security.admin_guard import TokenGuard, guard
from roma.security.admin_ports import AdminPorts
from roma.security.tls import server_context
from roma.security.tokens import watched
from roma.telemetry.decision_log import DecisionLog
from supervisor.actuators.base import Actuator
from supervisor.actuators.cgroup import CgroupActuator
from supervisor.actuators.docker import DockerActuator, Meters
from supervisor.actuators.host import read_host
from supervisor.actuators.meters import EngineMeters, FileMeters
from supervisor.actuators.recording import RecordingActuator
from supervisor.assembly import build_core, controlled, managed
from supervisor.broker.broker import Broker, Containers
from supervisor.broker.client import calling
from supervisor.broker.engine import connected
from supervisor.broker.server import SUPERVISOR, run_dir
from supervisor.cgroups import container_hierarchy, find_hierarchy
from supervisor.claims import Claims
from supervisor.live import api
from supervisor.live.gpus import Gpus
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def actuation(
    config: Config, worker: WorkerConfig, claims: Claims
) -> AsyncIterator[tuple[Actuator, str]]:
    """Yield the best permitted actuator and the mode it implies; raise TakenError."""
    if worker.backend is not Backend.DOCKER:
        yield build_actuator(config, worker, claims)
        return
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


async def run(config: Config, worker: WorkerConfig, file: Path, *, insecure: bool = False) -> None:
    """Control until SIGTERM or SIGINT; the last allocation stays in force afterwards.

    With a broker it stays until the lease runs out. On SIGHUP, switch to the models of `file`.
    """
    for warning in exposure.check(exposure.of_supervisor(config), insecure=insecure):
        log.warning(warning)
    shared = peers.exchange_token(config)
    scraping = watched(config.tokens.metrics, "tokens.metrics")
    calling_tls = peers.to_dispatchers(config)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    control, port = config.control, config.control_port(worker)
    period = config.period(worker)
    async with peers.session(calling_tls) as session, contextlib.AsyncExitStack() as stack:
        gpus = stack.enter_context(Gpus())
        claims = stack.enter_context(contextlib.closing(Claims()))
        held = await stack.enter_async_context(contextlib.AsyncExitStack())
        actuator, mode = await held.enter_async_context(actuation(config, worker, claims))
        # Half a period: a late answer must not delay the tick after it.
        dispatchers = [Peer(session, url, period / 2, shared) for url in config.dispatcher_urls]
        loop = ControlLoop(
            build_core(config, worker),
            actuator,
            dispatchers,
            worker=worker.name,
            period=period,
            law=control.law,
            decision_log=None
            if control.decision_log is None
            else DecisionLog(control.decision_log),
            host=_unknown_host if _is_remote(worker) else read_host,
        )
        following = asyncio.create_task(
            _follow(loop, held, worker.name, file, config, claims=claims)
        )
        stack.push_async_callback(_ended, following)
        context = None if control.tls is None else server_context(control.tls, "control.tls")
        files = [f for f in (shared, scraping, context, calling_tls) if f is not None]
        stack.push_async_callback(_ended, asyncio.create_task(keep_looking(files)))
        guard_ = guard(peers.names(config), {"/metrics": TokenGuard(scraping)}, TokenGuard(shared))
        app = api.application(loop, gpus, worker=worker.name, mode=mode, middlewares=[guard_])
        ports = AdminPorts()
        stack.callback(ports.close)
        address = control.host, port
        await stack.enter_async_context(ports.listening(app, address, "control.port", context))
        log.info(
            "supervisor of worker %s controls %s cores (%s)", worker.name, worker.allocatable, mode
        )
        tasks = [
            asyncio.create_task(_controlled(loop)),
            asyncio.create_task(stop.wait()),
            following,
        ]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()  # raise the bug that ended the loop, so that the launcher restarts us


async def _controlled(loop: ControlLoop) -> None:
    await loop.introduce()
    await loop.run()


def _is_remote(worker: WorkerConfig) -> bool:
    """Return True if the executables run on another host than this supervisor."""
    return worker.backend is Backend.DOCKER and worker.containers.remote


def _unknown_host() -> None:
    """Read nothing: this host's CPUs are not those of the executables."""


async def _follow(
    loop: ControlLoop,
    held: contextlib.AsyncExitStack,
    worker: str,
    file: Path,
    config: Config,
    *,
    claims: Claims,
) -> None:
    """Switch to another set of models; `held` keeps the present actuator open."""
    async for changed in reloads(file, config):
        here = changed.worker(worker)
        async with contextlib.AsyncExitStack() as fresh:
            try:
                actuator, _ = await fresh.enter_async_context(actuation(changed, here, claims))
            except TakenError as error:
                log.error("%s; what was controlled before still is, and nothing else", error)
                continue
            await loop.follow(managed(changed, here), actuator)
            old = held.pop_all()
            await held.enter_async_context(fresh.pop_all())
        await old.aclose()
        log.info("models: %s", ", ".join(changed.models))


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

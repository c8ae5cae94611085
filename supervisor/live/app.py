"""`roma supervisor`: one worker's supervisor as a program."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

from roma.config.reload import reloads
from roma.config.schema import Config
from roma.config.sources import Sources
from roma.config.watched_file import keep_looking
from roma.config.workers import WorkerConfig
from roma.domain.errors import TakenError
from roma.security import exposure, peers
from roma.security.admin_guard import TokenGuard, guard
from roma.security.admin_ports import AdminPorts
from roma.security.tls import server_context
from roma.security.tokens import watched
from roma.telemetry.decision_log import DecisionLog
from supervisor.actuators.host import read_host
from supervisor.assembly import build_core, managed
from supervisor.claims import Claims
from supervisor.live import api
from supervisor.live.actuation import actuation
from supervisor.live.gpus import Gpus
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

log = logging.getLogger(__name__)


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
        known = Sources(config).applied(config)
        here = known.worker(worker.name)
        actuator, mode = await held.enter_async_context(actuation(known, here, claims))
        # Half a period: a late answer must not delay the tick after it.
        dispatchers = [Peer(session, url, period / 2, shared) for url in config.dispatcher_urls]
        loop = ControlLoop(
            build_core(known, here),
            actuator,
            dispatchers,
            worker=worker.name,
            period=period,
            law=control.law,
            decision_log=None
            if control.decision_log is None
            else DecisionLog(control.decision_log),
            host=_unknown_host if worker.is_remote else read_host,
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
    """Switch to other models or executables; `held` keeps the present actuator open."""
    sources, turn, in_force = Sources(config), asyncio.Lock(), config

    async def switch() -> bool:
        async with turn:
            changed = sources.applied(in_force)
            here = changed.worker(worker)
            async with contextlib.AsyncExitStack() as fresh:
                try:
                    actuator, _ = await fresh.enter_async_context(actuation(changed, here, claims))
                except TakenError as error:
                    log.error("%s; what was controlled before still is, and nothing else", error)
                    return False
                await loop.follow(managed(changed, here), actuator)
                old = held.pop_all()
                await held.enter_async_context(fresh.pop_all())
            await old.aclose()
            return True

    try:
        async with asyncio.TaskGroup() as following:
            following.create_task(sources.follow(switch))
            async for in_force in reloads(file, config):
                if await switch():
                    log.info("models: %s", ", ".join(in_force.models))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group  # what people can mend is told in one line


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

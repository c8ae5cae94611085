"""`roma supervisor`: the supervisor of one worker, or of several, as a program."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roma.config.reload import reloads
from roma.config.schema import Config
from roma.config.security import reachable
from roma.config.sources import Sources
from roma.config.watched_file import keep_looking
from roma.config.workers import WorkerConfig
from roma.domain.errors import TakenError
from roma.domain.exchange import SupervisorId
from roma.kubernetes.pods import OWN_ADDRESS
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
from supervisor.live.actuation import ActuationContext, actuation
from supervisor.live.gpus import Gpus
from supervisor.live.identity import is_gone
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

if TYPE_CHECKING:
    from roma.kubernetes.lease import LeaderLease

log = logging.getLogger(__name__)


async def run(
    config: Config, workers: Sequence[WorkerConfig], file: Path, *, insecure: bool = False
) -> None:
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
    control, port = config.control, config.control_port(workers[0])
    async with peers.session(calling_tls) as session, contextlib.AsyncExitStack() as stack:
        gpus = stack.enter_context(Gpus())
        claims = stack.enter_context(contextlib.closing(Claims()))
        lease = await stack.enter_async_context(_lease(config, workers[0]))
        leads: Callable[[], bool] = (lambda: True) if lease is None else (lambda: lease.is_held)
        context = ActuationContext(claims, Sources(config), leads)

        def dispatchers(period: float) -> list[Peer]:
            # Half a period: a late answer must not delay the tick after it.
            limit = period / 2
            may_replace = is_gone if lease is None else _replaced_by_lease(leads)
            return [
                Peer(session, url, limit, shared, may_replace) for url in config.dispatcher_urls
            ]

        controlled = [
            await stack.enter_async_context(_controlled(config, worker, context, dispatchers))
            for worker in workers
        ]
        following = asyncio.create_task(_follow(controlled, file, config, context))
        stack.push_async_callback(_ended, following)
        tls = None if control.tls is None else server_context(control.tls, "control.tls")
        files = [f for f in (shared, scraping, tls, calling_tls) if f is not None]
        stack.push_async_callback(_ended, asyncio.create_task(keep_looking(files)))
        guard_ = guard(peers.names(config), {"/metrics": TokenGuard(scraping)}, TokenGuard(shared))
        app = api.application(
            [worker.api for worker in controlled],
            gpus,
            middlewares=[guard_],
            leader=lambda: "" if lease is None else lease.leader,
        )
        ports = AdminPorts()
        stack.callback(ports.close)
        address = control.host, port
        await stack.enter_async_context(ports.listening(app, address, "control.port", tls))
        for worker in controlled:
            log.info(
                "supervisor of worker %s controls %s cores (%s)",
                worker.name,
                worker.loop.core.capacity,
                worker.api.mode(),
            )
        tasks = [
            asyncio.create_task(_leading(lease, controlled)),
            asyncio.create_task(stop.wait()),
            following,
        ]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()  # raise the bug that ended the loop, so that the launcher restarts us


@dataclass(slots=True)
class _ControlledWorker:
    """A worker's loop; `held` keeps its present actuator open."""

    name: str
    loop: ControlLoop
    api: api.Controlled
    held: contextlib.AsyncExitStack

    async def switch(self, config: Config, context: ActuationContext) -> bool:
        """Control the executables of `config`; return False if another supervisor has some."""
        here = config.worker(self.name)
        if here.is_discovered:  # its actuator finds the executables itself
            await self.loop.follow(managed(config, here))
            return True
        async with contextlib.AsyncExitStack() as fresh:
            try:
                actuator, _ = await fresh.enter_async_context(actuation(config, here, context))
            except TakenError as error:
                log.error("%s; what was controlled before still is, and nothing else", error)
                return False
            await self.loop.follow(managed(config, here), actuator)
            old = self.held.pop_all()
            await self.held.enter_async_context(fresh.pop_all())
        await old.aclose()
        return True


@contextlib.asynccontextmanager
async def _controlled(
    config: Config,
    worker: WorkerConfig,
    context: ActuationContext,
    dispatchers: Callable[[float], list[Peer]],
) -> AsyncIterator[_ControlledWorker]:
    """Yield a worker with an actuator, not ticking yet."""
    control, period = config.control, config.period(worker)
    async with contextlib.AsyncExitStack() as held:
        known = context.sources.applied(config)
        here = known.worker(worker.name)
        actuator, mode = await held.enter_async_context(actuation(known, here, context))
        loop = ControlLoop(
            build_core(known, here),
            actuator,
            dispatchers(period),
            worker=worker.name,
            period=period,
            law=control.law,
            decision_log=None
            if control.decision_log is None
            else DecisionLog(control.decision_log),
            host=_unknown_host if worker.is_remote else read_host,
        )
        yield _ControlledWorker(worker.name, loop, api.Controlled(loop, mode), held)


@contextlib.asynccontextmanager
async def _lease(config: Config, worker: WorkerConfig) -> "AsyncIterator[LeaderLease | None]":
    """Yield our part in the election of a leader, if there is one; release the lease at the end."""
    settings = worker.pods
    if not worker.is_discovered or settings.lease is None:
        yield None
        return
    # An import that is not used must not delay the start.
    from roma.kubernetes.client import Client  # noqa: PLC0415
    from roma.kubernetes.credentials import find  # noqa: PLC0415
    from roma.kubernetes.lease import LeaderLease  # noqa: PLC0415

    credentials = find(settings.kubeconfig, settings.context)
    host = os.environ.get(OWN_ADDRESS) or config.control.host
    url = reachable(host, config.control_port(worker), tls=config.control.tls is not None)
    client = Client(credentials)
    try:
        lease = LeaderLease(
            client, settings.namespace or credentials.namespace, settings.lease, url
        )
        yield lease
        await lease.release()
    finally:
        await client.close()


def _replaced_by_lease(leads: Callable[[], bool]) -> Callable[[SupervisorId], bool]:
    """Return the rule that whoever holds the lease replaces any other supervisor."""

    def may_replace(_: SupervisorId) -> bool:
        return leads()

    return may_replace


async def _leading(lease: "LeaderLease | None", controlled: Sequence[_ControlledWorker]) -> None:
    """Control, once we lead; raise TakenError if the lease is lost."""
    if lease is not None:
        await lease.acquired()
    try:
        async with asyncio.TaskGroup() as group:
            for worker in controlled:
                group.create_task(_ticking(worker.loop))
            if lease is not None:
                group.create_task(_keeping(lease))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed  # what people can mend is told in one line


async def _keeping(lease: "LeaderLease") -> None:
    await lease.keep()
    raise TakenError(f"lease: {lease.leader} holds it now; this supervisor ends")


async def _ticking(loop: ControlLoop) -> None:
    await loop.introduce()
    await loop.run()


def _unknown_host() -> None:
    """Read nothing: this host's CPUs are not those of the executables."""


async def _follow(
    controlled: Sequence[_ControlledWorker], file: Path, config: Config, context: ActuationContext
) -> None:
    """Switch to other models or executables as the file and the sources change."""
    turn, in_force = asyncio.Lock(), config

    async def switch() -> bool:
        async with turn:
            changed = context.sources.applied(in_force)
            switched = [worker.switch(changed, context) for worker in controlled]
            return all(await asyncio.gather(*switched))

    try:
        async with asyncio.TaskGroup() as following:
            following.create_task(context.sources.follow(switch))
            async for in_force in reloads(file, config):
                if await switch():
                    log.info("models: %s", ", ".join(in_force.models))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group  # what people can mend is told in one line


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

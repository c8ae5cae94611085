"""`roma supervisor`: the supervisor of one worker, or of several, as a program."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roma.config.reload import reloads
from roma.config.schema import Config
from roma.config.security import reachable
from roma.config.sources import Sources
from roma.config.watched_file import looking
from roma.config.workers import WorkerConfig
from roma.domain.errors import TakenError, naming
from roma.kubernetes.pods import OWN_ADDRESS
from roma.security import exposure, peers
from roma.security.admin_guard import TokenGuard, guard
from roma.security.admin_ports import AdminPorts
from roma.security.tls import server_context
from roma.security.tokens import watched
from roma.telemetry.exhaustion import report_exhaustion
from roma.telemetry.tasks import background, stop_signal, until_one_ends
from supervisor.claims import Claims
from supervisor.live import api
from supervisor.live.actuation import ActuationContext, learn_late, prepare
from supervisor.live.gpus import Gpus
from supervisor.live.identity import is_gone
from supervisor.live.peer import Peer
from supervisor.live.worker_set import WorkerSet, controlling

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
    stop = stop_signal()
    report_exhaustion(asyncio.get_running_loop())
    control, port = config.control, config.control_port(workers[0])
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(peers.session(calling_tls))
        # For each worker a call waits at each dispatcher: they must keep no report from its turn.
        waiting = await stack.enter_async_context(peers.session(calling_tls, limit=0))
        gpus = stack.enter_context(Gpus())
        claims = stack.enter_context(contextlib.closing(Claims()))
        lease = await stack.enter_async_context(_lease(config, workers[0]))
        leads: Callable[[], bool] = (lambda: True) if lease is None else (lambda: lease.is_held)
        context = ActuationContext(claims, Sources(config), leads)
        await prepare(config, context.sources)
        await stack.enter_async_context(background(learn_late(config, context.sources)))

        def dispatchers(period: float) -> list[Peer]:
            # Half a period: a late answer must not delay the tick after it.
            limit = period / 2
            # The holder of the lease replaces any other supervisor.
            may_replace = is_gone if lease is None else lambda _: leads()
            return [
                Peer(session, url, limit, shared, may_replace, waiting=waiting)
                for url in config.dispatcher_urls
            ]

        names = [worker.name for worker in workers]
        known = context.sources.applied(config)
        worker_set = await stack.enter_async_context(
            controlling(names, known, context, dispatchers)
        )
        following = await stack.enter_async_context(
            background(_follow(worker_set, file, config, context))
        )
        tls = None if control.tls is None else server_context(control.tls, "control.tls")
        await stack.enter_async_context(looking(shared, scraping, tls, calling_tls))
        guard_ = guard(peers.names(config), {"/metrics": TokenGuard(scraping)}, TokenGuard(shared))
        app = api.application(
            lambda: worker_set.controlled,
            gpus,
            middlewares=[guard_],
            leader=lambda: "" if lease is None else lease.leader,
        )
        ports = AdminPorts()
        stack.callback(ports.close)
        address = control.host, port
        await stack.enter_async_context(ports.listening(app, address, "control.port", tls))
        # A bug that ends one of them ends the program, so that the launcher restarts it.
        await until_one_ends(_leading(lease, worker_set), stop.wait(), following)


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

    with naming(f"workers.{worker.name}.kubernetes.kubeconfig"):
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


async def _leading(lease: "LeaderLease | None", workers: WorkerSet) -> None:
    """Control, once we lead; raise TakenError if the lease is lost."""
    if lease is not None:
        await lease.acquired()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(workers.run())
            if lease is not None:
                group.create_task(_keeping(lease))
    except ExceptionGroup as failed:
        raise _first(failed) from failed  # what people can mend is told in one line


def _first(failed: BaseException) -> BaseException:
    return _first(failed.exceptions[0]) if isinstance(failed, ExceptionGroup) else failed


async def _keeping(lease: "LeaderLease") -> None:
    await lease.keep()
    raise TakenError(f"lease: {lease.leader} holds it now; this supervisor ends")


async def _follow(
    workers: WorkerSet, file: Path, config: Config, context: ActuationContext
) -> None:
    """Switch to other models or executables as the file and the sources change."""
    in_force = config

    async def switch() -> bool:
        return await workers.switch(context.sources.applied(in_force))

    try:
        async with asyncio.TaskGroup() as following:
            following.create_task(context.sources.follow(switch))
            async for in_force in reloads(file, config):
                if await switch():
                    log.info("models: %s", ", ".join(in_force.models))
    except ExceptionGroup as group:
        raise _first(group) from group  # what people can mend is told in one line

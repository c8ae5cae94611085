"""Safe shares for processes: the launcher's counterpart of the broker's lease for containers.

A supervisor that dies is restarted within seconds. One that hangs would leave every model with
allocations from a moment long past.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

import aiohttp

from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.config.security import reachable
from roma.config.watched_file import Watched
from roma.config.workers import WorkerConfig
from roma.domain.errors import ActuationError
from roma.security import peers
from roma.security.tokens import Token, sent
from supervisor.broker.broker import LEAST_LEASE, safe_shares
from supervisor.cgroups import Group

log = logging.getLogger(__name__)

LEASE = 3.0
"""Seconds after which a silent supervisor loses control; longer if its control period is."""

LOOK = 0.5
"""Seconds between two checks of the supervisor."""


async def keep_safe(
    worker: str, config: Callable[[], Config], groups: Callable[[], Mapping[str, Group]]
) -> None:
    """Grant safe shares whenever a worker's supervisor has stopped ticking; never returns.

    `config` and `groups` return the current values, since models come and go, and are shared among
    anew. Until its first tick a supervisor is starting, and the initial cores stay in force.
    """
    loop = asyncio.get_running_loop()
    seen: int | None = None
    renewed, safe = loop.time(), frozenset[str]()
    context, token = peers.to_supervisors(config()), peers.exchange_token(config())
    async with peers.session(context, LOOK) as session:
        while True:
            await asyncio.sleep(LOOK)
            for file in (context, token):
                if file is not None:
                    file.look()
            present = config()
            control, here = present.control, present.worker(worker)
            # On this machine, whatever address others use for it.
            at = reachable(control.host, present.control_port(here), tls=control.tls is not None)
            ticks = await _ticks(session, f"{at}/control/v1/state", token)
            if ticks is not None and ticks != seen:
                seen, renewed, safe = ticks, loop.time(), frozenset()
                continue
            lease = max(LEASE, LEAST_LEASE * present.period(here))
            made = groups()
            if seen is None or safe == made.keys() or loop.time() - renewed <= lease:
                continue
            if not safe:
                log.warning("worker %s: no tick for %g s: safe shares", worker, lease)
            _share(present, here, made)
            safe = frozenset(made)


async def _ticks(
    session: aiohttp.ClientSession, url: str, token: Watched[Token] | None
) -> int | None:
    """Return the number of control periods the supervisor has completed; None without an answer."""
    try:
        async with session.get(url, headers=sent(token)) as response:
            return int((await response.json())["ticks"])
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        return None


def _share(config: Config, worker: WorkerConfig, groups: Mapping[str, Group]) -> None:
    for name, cores in safe_shares(on_worker(config, worker), worker.allocatable).items():
        if name not in groups:
            continue
        try:
            groups[name].set_cores(cores)
        except ActuationError as error:
            log.warning("executable %s: no safe share: %s", name, error)

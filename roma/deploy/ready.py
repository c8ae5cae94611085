"""Readiness of models and replicas: `ready: 2 models`, or the models that cannot be served."""

import asyncio
import contextlib
import errno
import logging
import time
from collections.abc import Mapping

import aiohttp

from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.watched_file import Watched
from roma.deploy.child import Child
from roma.domain import exchange
from roma.domain.errors import ExchangeError, LaunchError
from roma.domain.exchange import LIVE, ExchangeReply
from roma.domain.words import counted
from roma.security import peers
from roma.security.tokens import Token, sent
from roma.telemetry.reachability import reason

LOOK = 0.5
"""Seconds between two polls of a dispatcher until all models are served."""

log = logging.getLogger(__name__)


async def announce(config: Config, children: Mapping[str, Child]) -> None:
    """Log when each model is served or known to be unservable; return when all are served."""
    at, token, said = config.gateway.exchange_urls[0], peers.exchange_token(config), ""
    async with peers.session(peers.to_dispatchers(config), 1) as session:
        while True:
            reply = None
            with contextlib.suppress(ExchangeError):  # it is starting or restarting
                reply = await report(session, at, token)
            if reply is not None:
                states = {e.executor: e.state for e in reply.executors}
                text, is_complete = summary(config, states, children)
                if text and text != said:
                    log.info(text)
                    said = text
                if is_complete:
                    return
            await asyncio.sleep(LOOK)


async def report(
    session: aiohttp.ClientSession, at: str, token: Watched[Token] | None
) -> ExchangeReply | None:
    """Return the report of a dispatcher; None while nothing listens there.

    Raises ExchangeError for any other failure.
    """
    try:
        async with session.get(f"{at}/control/v1/report", headers=sent(token)) as response:
            body = await response.read()
            if response.status != 200:
                raise ExchangeError(f"{at}: status {response.status}")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if getattr(error, "errno", None) == errno.ECONNREFUSED:
            return None
        raise ExchangeError(f"{at}: {reason(error)}") from error
    return exchange.parse(exchange.REPLY, body)


async def replicas_serve(config: Config, model: str, limit: float) -> bool:
    """Wait until every dispatcher has exactly the replicas of a model that `config` says, all live.

    Returns False at once if there is no dispatcher; raises LaunchError after `limit` seconds.
    """
    wanted = {f"{model}@{worker}" for worker, models in config.placed.items() if model in models}
    placed = {f"{model}@{worker}" for worker in config.placed}
    token, deadline = peers.exchange_token(config), time.monotonic() + limit
    async with peers.session(peers.to_dispatchers(config), 1) as session:
        waiting = list(config.gateway.exchange_urls)
        was_there = False
        while waiting:
            try:
                reply = await report(session, waiting[0], token)
            except ExchangeError as error:
                found, states = str(error), None
            else:
                if reply is None and not was_there:
                    return False
                reported = () if reply is None else reply.executors
                states = {e.executor: e.state for e in reported if e.executor in placed}
                found = ", ".join(f"{name} {state}" for name, state in sorted(states.items()))
            was_there = True
            if states is not None and states.keys() == wanted and {*states.values()} <= {*LIVE}:
                waiting.pop(0)
                continue
            if time.monotonic() > deadline:
                raise LaunchError(f"{model} after {limit:g} s: {found or 'no report'}")
            await asyncio.sleep(LOOK)
    return True


def summary(
    config: Config, states: Mapping[str, str], children: Mapping[str, Child]
) -> tuple[str, bool]:
    """Return the message (empty while a model may still load) and True if all models are served.

    `states` are those of the executables, as a dispatcher reports them.
    """
    troubles: dict[str, list[str]] = {model: [] for model in config.models}
    served = set()
    for executable in executables(config):
        name, child = executable.name, children.get(executable.name)
        for model in executable.spec.models:
            if states.get(name) in LIVE:
                served.add(model)
            else:
                troubles[model].append("" if child is None else child.trouble)
    missing = {model: said for model, said in troubles.items() if model not in served}
    count = counted(len(config.models), "model")
    if not missing:
        return f"ready: {count}", True
    if not all(said and all(said) for said in missing.values()):
        return "", False
    reasons = "; ".join(reason for said in missing.values() for reason in said)
    return f"ready: {len(served)} of {count}; unavailable: {reasons}", False

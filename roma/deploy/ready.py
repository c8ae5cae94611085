"""Readiness report at start: `ready: 2 models`, or the models that cannot be served."""

import asyncio
import logging
from collections.abc import Mapping

import aiohttp

from roma.config.placement import executables
from roma.config.schema import Config
from roma.config.security import reachable
from roma.deploy.child import Child
from roma.domain import exchange
from roma.domain.errors import ExchangeError
from roma.security import peers
from roma.security.tokens import sent

LIVE = ("idle", "busy")

LOOK = 0.5
"""Seconds between two polls of a dispatcher until all models are served."""

log = logging.getLogger(__name__)


async def announce(config: Config, children: Mapping[str, Child]) -> None:
    """Log when each model is served or known to be unservable; return when all are served."""
    g, tls = config.gateway, config.gateway.admin_tls is not None
    url = f"{reachable(*g.exchange_addresses[0], tls=tls)}/control/v1/report"
    token, said = peers.exchange_token(config), ""
    async with peers.session(peers.to_dispatchers(config), 1) as session:
        while True:
            try:
                async with session.get(url, headers=sent(token)) as response:
                    reply = exchange.parse_reply(await response.read())
            except (aiohttp.ClientError, OSError, TimeoutError, ExchangeError):
                pass  # it is starting or restarting
            else:
                states = {e.executor: e.state for e in reply.executors}
                text, is_complete = summary(config, states, children)
                if text and text != said:
                    log.info(text)
                    said = text
                if is_complete:
                    return
            await asyncio.sleep(LOOK)


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
    count = f"{len(config.models)} model{'' if len(config.models) == 1 else 's'}"
    if not missing:
        return f"ready: {count}", True
    if not all(said and all(said) for said in missing.values()):
        return "", False
    reasons = "; ".join(reason for said in missing.values() for reason in said)
    return f"ready: {len(served)} of {count}; unavailable: {reasons}", False

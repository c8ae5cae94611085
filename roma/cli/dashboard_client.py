"""A dispatcher's admin port, called from the command line."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from roma.config import schema
from roma.domain.errors import ExchangeError
from roma.security import peers, tokens
from roma.security.tls import client_context
from roma.security.tokens import Token
from roma.telemetry.reachability import reason

DEFAULT = "http://127.0.0.1:8500"

LIMIT = 5.0
"""Seconds that a dispatcher may take to answer."""


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """A dispatcher's admin port, and how it is called."""

    url: str
    token: Token | None = None
    tls: ssl.SSLContext | None = None


def target(
    url: str | None, file: Path | None, token_file: Path | None, ca: Path | None
) -> AdminTarget:
    """Return what the command line means; a roma.yaml says what its other options do not."""
    config = None if file is None else schema.load(file)
    if url is None:
        url = DEFAULT if config is None else config.gateway.admin_url
    if token_file is None and config is not None:
        token = tokens.watched(config.tokens.admin, "tokens.admin")
    else:
        token = tokens.watched(token_file, "--token-file")
    tls = client_context(ca, key="--ca") if ca is not None else None
    if config is not None and ca is None and url.startswith("https:"):
        tls = peers.to_dispatchers(config)
    return AdminTarget(url, None if token is None else token.value, tls)


def _why(error: Exception) -> str:
    return f"nothing within {LIMIT:g} s" if isinstance(error, TimeoutError) else reason(error)


async def fetch(at: AdminTarget, what: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what a dispatcher's admin port answers."""
    url = at.url
    address = f"{url.rstrip('/')}/control/v1/{what}"
    headers = {} if at.token is None else {"Authorization": at.token.authorization}
    try:
        async with (
            peers.session(at.tls, LIMIT) as session,
            # No redirect: the token is for this address.
            session.get(address, params=query, headers=headers, allow_redirects=False) as response,
        ):
            body = await response.read()
            answer = orjson.loads(body)
            if response.status == 401:
                raise ExchangeError(f"{url}: asks for its token: --token-file, or --config")
            if response.status != 200:
                raise ExchangeError(f"{url}: {answer['error']}")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ExchangeError(f"{url}: no dispatcher answers: {_why(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExchangeError(f"{url}: not a dispatcher's admin port") from error
    if not isinstance(answer, dict):
        raise ExchangeError(f"{url}: not a dispatcher's admin port")
    return answer

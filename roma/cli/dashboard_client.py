"""A dispatcher's admin port, called from the command line."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from yarl import URL

from roma.cli.port_forward import ClusterService, forwarded
from roma.config import schema
from roma.config.schema import Config
from roma.deploy.kubernetes import common
from roma.domain.errors import ConfigError, ExchangeError
from roma.security import peers, tokens
from roma.security.tls import client_context
from roma.security.tokens import Token
from roma.telemetry.logs import escaped
from roma.telemetry.reachability import reason

DEFAULT = "http://127.0.0.1:8500"
ADMIN_PORT = 8500

LIMIT = 5.0
"""Seconds that a dispatcher may take to answer."""

_KEYS = {
    "dashboard": {"name", "at", "workers", "models"},
    "decisions": {"decisions", "refusals", "silent"},  # a supervisor has decisions, too
}
"""The keys of each answer, by which it is told from the JSON of another program."""


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """A dispatcher's admin port, and how it is called; in a cluster by way of `service`."""

    url: str
    token: Token | None = None
    tls: ssl.SSLContext | None = None
    service: ClusterService | None = None

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator["AdminTarget"]:
        """Yield the target at an address of this machine; raise ExchangeError if there is none."""
        if self.service is None:
            yield self
            return
        async with forwarded(self.service) as url:
            yield replace(self, url=url)


def target(
    url: str | None,
    file: Path | None,
    token_file: Path | None,
    ca: Path | None,
    kube_context: str | None = None,
    namespace: str | None = None,
) -> AdminTarget:
    """Return what the command line means; a roma.yaml says what its other options do not."""
    if url is not None and not _is_url(url):
        raise ConfigError(f"--url = {url}: must be http://host:port or https://host:port")
    config = None if file is None else schema.load(file)
    service = None
    if kube_context is not None:
        if url is not None:
            raise ConfigError(f"--url = {url}: must be absent where --kube-context is set")
        if ca is not None:
            raise ConfigError(f"--ca = {ca}: must be absent where --kube-context is set")
        service = _service(config, kube_context, namespace)
    elif namespace is not None:
        raise ConfigError(f"--namespace = {namespace}: must be absent without --kube-context")
    if url is None:
        url = DEFAULT if config is None else config.gateway.admin_url
    if token_file is None and config is not None:
        token = tokens.watched(config.tokens.admin, "tokens.admin")
    else:
        token = tokens.watched(token_file, "--token-file")
    tls = client_context(ca, key="--ca") if ca is not None else None
    if config is not None and ca is None and url.startswith("https:"):
        tls = peers.to_dispatchers(config)
    return AdminTarget(url, None if token is None else token.value, tls, service)


def _is_url(text: str) -> bool:
    try:
        url = URL(text)
        (url.raw_host or "").encode("idna")  # as a resolver does
        return url.scheme in ("http", "https") and bool(url.host_subcomponent)
    except ValueError:
        return False


def _service(config: Config | None, context: str, namespace: str | None) -> ClusterService:
    """Return the Service that `roma render kubernetes` writes for the page."""
    if config is None:
        return ClusterService(context, namespace, common.page("roma"), ADMIN_PORT)
    chosen = namespace or common.namespace(config)
    port = config.gateway.admin_port
    return ClusterService(context, chosen, common.page(config.name), port)


def _why(error: Exception) -> str:
    return f"nothing within {LIMIT:g} s" if isinstance(error, TimeoutError) else reason(error)


def fetch_once(at: AdminTarget, what: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what a dispatcher's admin port answers, once."""

    async def once() -> dict[str, Any]:
        async with at.reached() as reached:
            return await fetch(reached, what, query)

    return asyncio.run(once())


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
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ExchangeError(f"{url}: no dispatcher answers: {_why(error)}") from error
    with reading(at):
        answer: dict[str, Any] = orjson.loads(body)
        if response.status == 401:
            raise ExchangeError(f"{url}: asks for its token: --token-file, or --config")
        if response.status != 200:
            said = str(answer["error"])
            if said.lower().startswith("not found"):  # as of the clients' port
                raise ValueError(said)
            raise ExchangeError(f"{url}: {said}")
        if not _KEYS[what] <= answer.keys():
            raise LookupError(what)
    return answer


def printable(found: Any) -> Any:
    """Return an answer whose texts a terminal shows and does not obey, at any depth.

    Some come from far: the reason that a model server gives, for example.
    """
    match found:
        case str():
            return escaped(found)
        case list():
            return [printable(one) for one in found]
        case dict():
            return {printable(key): printable(one) for key, one in found.items()}
        case _:
            return found


@contextlib.contextmanager
def reading(at: AdminTarget) -> Iterator[None]:
    """Raise ExchangeError in place of what a malformed answer raises where it is used."""
    try:
        yield
    # OSError: of a time that no calendar has.
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise ExchangeError(f"{at.url}: not a dispatcher's admin port") from error

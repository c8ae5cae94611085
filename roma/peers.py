"""How ROMA's programs call each other: over TLS where the listener has it, with the shared token.

A caller that is asked for a certificate shows the one of its own listener, which must then be one
for clients too (extended key usage).
"""

import ssl
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from roma.config import Config
from roma.tls import RenewedContext, client_context
from roma.tokens import Token, watched
from roma.watched import Watched


def exchange_token(config: Config) -> Watched[Token] | None:
    """Return what dispatchers and supervisors know each other by."""
    return watched(config.tokens.exchange)


def to_dispatchers(config: Config) -> RenewedContext | None:
    """Return how their admin ports are called; None without TLS."""
    theirs, own = config.gateway.admin_tls, config.control.tls
    if not any(url.startswith("https:") for url in (*config.dispatcher_urls, _admin(config))):
        return None
    return client_context(None if theirs is None else theirs.ca, own or theirs)


def to_supervisors(config: Config) -> RenewedContext | None:
    """Return how supervisors are called; None without TLS."""
    theirs, own = config.control.tls, config.gateway.admin_tls
    if not any(url.startswith("https:") for url in config.supervisor_urls.values()):
        return None
    return client_context(None if theirs is None else theirs.ca, own or theirs)


def session(context: ssl.SSLContext | None, timeout: float | None = None) -> ClientSession:
    """Return a session that calls so; `timeout` is of a whole call, in seconds."""
    return ClientSession(
        connector=TCPConnector(ssl=True if context is None else context),
        timeout=ClientTimeout(total=timeout),
    )


def names(config: Config) -> set[str]:
    """Return the names under which dispatchers and supervisors are called."""
    g, c = config.gateway, config.control
    urls = [*c.dispatchers, *g.supervisors.values()]
    found = {urlsplit(url).hostname or "" for url in urls}
    found |= {g.admin_host, g.exchange_address[0], g.metrics_address[0], c.host, *g.admin_names}
    return found - {""}


def _admin(config: Config) -> str:
    return config.gateway.admin_url

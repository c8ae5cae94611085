"""Calls between ROMA's programs: over TLS where the listener has it, with the shared token.

A caller that is asked for a certificate presents that of its own listener, which must then also be
valid for clients (extended key usage).
"""

import ssl
from typing import Final
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from roma.config.schema import Config
from roma.config.security import TlsConfig
from roma.config.watched_file import Watched
from roma.security.tls import RenewedContext, client_context
from roma.security.tokens import Token, watched

MOST_CALLS: Final = 48
"""Calls that a program makes to one listener at once: it has connections for others, too."""


def exchange_token(config: Config) -> Watched[Token] | None:
    """Return the token by which dispatchers and supervisors authenticate each other."""
    return watched(config.tokens.exchange, "tokens.exchange")


def to_dispatchers(config: Config) -> RenewedContext | None:
    """Return the TLS context for calls to dispatchers' admin ports; None without TLS."""
    if not any(
        url.startswith("https:") for url in (*config.dispatcher_urls, config.gateway.admin_url)
    ):
        return None
    admin = config.gateway.admin_tls, "gateway.admin_tls"
    return _context(admin, (config.control.tls, "control.tls"))


def to_supervisors(config: Config) -> RenewedContext | None:
    """Return the TLS context for calls to supervisors; None without TLS."""
    # Without the supervisors of nodes that are yet to come, and that may be all of them.
    urls = (*config.supervisor_urls.values(), *config.gateway.supervisors.values())
    if config.control.tls is None and not any(url.startswith("https:") for url in urls):
        return None
    admin = config.gateway.admin_tls, "gateway.admin_tls"
    return _context((config.control.tls, "control.tls"), admin)


def _context(
    theirs: tuple[TlsConfig | None, str], own: tuple[TlsConfig | None, str]
) -> RenewedContext:
    """Return the client context for the listeners of a section, with our certificate if any."""
    listener, key = theirs
    shown, shown_key = theirs if own[0] is None else own
    ca = None if listener is None else listener.ca
    return client_context(ca, shown, key=f"{key}.ca", own_key=shown_key)


def session(
    context: ssl.SSLContext | None, timeout: float | None = None, *, limit: int = MOST_CALLS
) -> ClientSession:
    """Return a client session with this context; `timeout` is for a whole call, in seconds.

    `limit` is the number of calls to one listener at once, 0 for any number.
    """
    return ClientSession(
        connector=TCPConnector(
            ssl=True if context is None else context, limit=0, limit_per_host=limit
        ),
        timeout=ClientTimeout(total=timeout),
    )


def names(config: Config) -> set[str]:
    """Return the names under which dispatchers and supervisors are called."""
    g, c = config.gateway, config.control
    urls = [*c.dispatchers, *g.supervisors.values()]
    found = {urlsplit(url).hostname or "" for url in urls}
    found |= {g.admin_host, g.exchange_address[0], g.metrics_address[0], c.host, *g.admin_names}
    return found - {""}

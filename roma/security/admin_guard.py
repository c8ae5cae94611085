"""Guard of the admin port and the supervisors' ports: checks of Host and of a secret.

A page of another site can point a name of its own at this machine (DNS rebinding), and the browser
would treat our answers as that site's. So a Host that is not configured is refused with 421.
Addresses are always accepted: no foreign page has one of ours as its origin.

The secret required depends on the route that would be executed, not on the spelling of its path.
Routes that are not listed, and paths that do not exist, require the default secret. /healthz
reveals nothing and requires nothing.
"""

import asyncio
import base64
import binascii
import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from roma.config.watched_file import Watched
from roma.security.tokens import Token
from roma.telemetry import logs

HEALTH = "/healthz"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenGuard:
    """Guard that admits every caller, or only those with a token: as bearer, or as password."""

    token: Watched[Token] | None
    browser: bool = False

    def allows(self, authorization: str | None) -> bool:
        """Return whether an Authorization header lets its sender in."""
        if self.token is None:
            return True
        scheme, _, text = (authorization or "").partition(" ")
        match scheme.lower():
            case "bearer":
                return self.token.value.matches(text.strip())
            case "basic" if self.browser:
                return self.token.value.matches(_password(text))
            case _:
                return False

    @property
    def challenge(self) -> str:
        """Value of `WWW-Authenticate`: makes a browser ask its user for a password."""
        return 'Basic realm="ROMA", charset="UTF-8"' if self.browser else 'Bearer realm="ROMA"'


def guard(
    names: Iterable[str], guards: Mapping[str, TokenGuard], default: TokenGuard
) -> Middleware:
    """Return the middleware of an application whose routes have these guards, by path.

    Must be called in a running loop. Refusals are logged, at most one line a second.
    """
    known = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}
    said = logs.RateLimitedLogger(log, asyncio.get_running_loop())

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = None if resource is None else resource.canonical
        if path == HEALTH:
            return await handler(request)
        if not _known(request.headers.get(hdrs.HOST), known):
            why = "not known by this name: gateway.admin_names lists those that are"
            said.log("names", logging.WARNING, "%s: refused: %s", request.remote, why)
            return web.json_response({"error": why}, status=421)
        guard_ = default if path is None else guards.get(path, default)
        if not guard_.allows(request.headers.get(hdrs.AUTHORIZATION)):
            message = "%s: %s %s: no valid token"
            what = (request.remote, request.method, request.path)
            said.log("tokens", logging.WARNING, message, *what)
            challenge = {hdrs.WWW_AUTHENTICATE: guard_.challenge}
            return web.json_response({"error": "a token is needed"}, status=401, headers=challenge)
        return await handler(request)

    return middleware


def _known(host: str | None, names: frozenset[str]) -> bool:
    if not host:
        return False
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _password(text: str) -> str:
    """Return the password of HTTP Basic; the user's name does not matter."""
    try:
        return base64.b64decode(text.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""

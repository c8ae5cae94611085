"""Access control: which caller may use which model, by key, provider token or certificate.

`admit` runs for every request. It is synchronous and takes about three microseconds for a key: one
SHA-256 of the token, one look-up by the token's public id, one comparison in constant time. There
is nothing to cache: that hash is the verification. An identity provider's token is verified once,
in about a tenth of a millisecond, and then known by its SHA-256 until it expires (`oidc.py`).

A caller without a scope for a model gets the same 403 whether the model exists or not, so `admit`
must run before the model is looked up. Where a request names its model in its body, as over gRPC,
`admit` runs before the body is read and `check` after it: such a 403 costs one request of the rate.

Tokens, and values that a client sent in their place, never appear in messages, reprs or logs.
"""

import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from dispatcher.live.auth.callers import NO_DIGEST, Bearers, Caller, Denied, Grant
from dispatcher.live.auth.rate_limit import RateLimit
from roma.config.gateway import GatewayConfig
from roma.config.security import Limits, OidcConfig
from roma.config.watched_file import Watched, looking
from roma.domain.errors import ConfigError
from roma.security.api_keys import KeyEntry, Keys, expired, load

__all__ = ["Access", "Credentials", "Denied", "Grant", "opened"]

RETRY = 1.0
"""Seconds after which a caller with too many requests in progress may try again."""

LONGEST = 8192
"""Longest token that is examined, in characters."""

_UNLIMITED = Limits()

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Credentials:
    """Credentials of a request. `authorization` and `api_key` are the unchanged headers."""

    authorization: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    peer: str = ""
    """Address of the client, for logs."""
    certificate: str | None = None
    """Name in a verified client certificate: `roma.security.tls.certificate_name`."""


class Access:
    """Decides which requests to admit: all of them without keys, provider and certificates."""

    def __init__(
        self,
        keys: Watched[Keys] | None = None,
        bearers: Bearers | None = None,
        *,
        certificates: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._bearers = bearers
        self._certificates = certificates and keys is None and bearers is None
        self._wall = wall
        self._seen: Keys | None = None
        self._callers: dict[str, Caller] = {}
        self._certified: dict[str, Caller] = {}
        self.is_open = keys is None and bearers is None and not certificates
        """True if every client is admitted, whatever its credentials."""
        self._everybody = Caller("", _UNLIMITED, RateLimit(_UNLIMITED))
        self.denied: Counter[int] = Counter()
        """Refused requests, by status."""

    def admit(self, who: Credentials, model: str | None, now: float) -> Grant:
        """Admit a request or raise `Denied`; without a model any known caller is admitted.

        `now` is the time of a clock that never jumps; expiry uses the wall clock.
        """
        try:
            caller = self._everybody if self.is_open else self._caller(who)
            if model is not None:
                caller.check(model)
            refusal = caller.rate_limit.refusal(now)
            if refusal is not None:
                why, wait = refusal
                wait = RETRY if wait is None else wait
                raise Denied(429, f"{caller.name}: {why}", wait)
        except Denied as denied:
            self.denied[denied.status] += 1
            raise
        return Grant(caller)

    def check(self, grant: Grant, model: str) -> None:
        """Raise `Denied` if a caller admitted before its model was known may not call the model."""
        try:
            grant.check(model)
        except Denied as denied:
            self.denied[denied.status] += 1
            raise

    def _caller(self, who: Credentials) -> Caller:
        if self._keys is not None and self._keys.value is not self._seen:
            self._take_over(self._keys.value)
        token = who.api_key
        authorization = who.authorization
        if authorization is not None and authorization[:7].lower() == "bearer ":
            token = authorization[7:].strip()
            # A proxy's own key may be beside it; of two of ours, it is unknown which is meant.
            other = who.api_key or ""
            if other != token and other.startswith("roma_"):
                raise _unknown()
        if token is None:
            caller = self._by_certificate(who.certificate)
        elif len(token) > LONGEST or not token.isascii():
            raise _unknown()
        elif token.startswith("roma_"):
            caller = self._by_key(token)
        elif self._bearers is not None and token is not who.api_key:
            caller = self._bearers.caller(token)
        else:
            raise _unknown()
        if caller.expires != math.inf and self._wall() >= caller.expires:
            raise Denied(401, f"the credentials of {caller.name} have expired")
        return caller

    def _by_key(self, token: str) -> Caller:
        digest = sha256(token.encode()).digest()
        caller = self._callers.get(token[5:13])
        # An id is public, so its existence may show; the number of correct digits of a secret must
        # not.
        if not compare_digest(digest, caller.secret if caller else NO_DIGEST):
            raise _unknown()
        assert caller is not None
        return caller

    def _by_certificate(self, name: str | None) -> Caller:
        if name is None:
            raise Denied(401, "a key or token is needed, as Authorization: Bearer TOKEN")
        if self._certificates:
            # Every client with a certificate of the right authority is admitted.
            return Caller(name, _UNLIMITED, self._everybody.rate_limit)
        if name not in self._certified:
            raise Denied(401, "this client certificate belongs to nobody who may call")
        return self._certified[name]

    def _take_over(self, keys: Keys) -> None:
        """Create callers from the keys; existing ones keep their counts of requests."""
        old = {**self._callers, **self._certified}
        known = {id_: old.get(entry.certificate or id_) for id_, entry in keys.keys.items()}
        callers = {id_: _made(id_, e, known[id_]) for id_, e in keys.keys.items()}
        self._callers = {id_: callers[id_] for id_, e in keys.keys.items() if e.hash}
        self._certified = {
            e.certificate: callers[id_] for id_, e in keys.keys.items() if e.certificate
        }
        self._seen = keys


def _made(id_: str, entry: KeyEntry, old: Caller | None) -> Caller:
    rate_limit = RateLimit(entry) if old is None else old.rate_limit
    rate_limit.follow(entry)
    return Caller(
        entry.name or id_,
        entry,
        rate_limit,
        models=None if entry.models == "*" else frozenset(entry.models),
        expires=math.inf if entry.expires is None else entry.expires.timestamp(),
        secret=NO_DIGEST
        if entry.hash is None
        else bytes.fromhex(entry.hash.removeprefix("sha256:")),
    )


def _unknown() -> Denied:
    return Denied(401, "the key or token is not valid")


def _loaded(path: Path) -> Keys:
    """Read the keys; log the names of expired ones, since their callers only get a 401."""
    found = load(path)
    for line in expired(found, datetime.now(UTC)):
        log.warning("gateway.keys: %s: %s", path, line)
    return found


@contextlib.asynccontextmanager
async def opened(config: GatewayConfig) -> AsyncIterator[Access]:
    """Yield the access control that a gateway's section configures, kept current in the block."""
    path = config.keys
    keys = None if path is None else Watched([path], lambda: _loaded(path), "gateway.keys")
    mutual = config.tls is not None and config.tls.client_ca is not None
    async with contextlib.AsyncExitStack() as stack:
        bearers = None
        if config.oidc is not None:
            bearers = await stack.enter_async_context(_provider(config.oidc))
        await stack.enter_async_context(looking(keys))
        yield Access(keys, bearers, certificates=mutual)


def _provider(config: OidcConfig) -> contextlib.AbstractAsyncContextManager[Bearers]:
    try:
        # An extra; and an import that is not used must not delay the start.
        from dispatcher.live.auth.oidc import provider  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"gateway.oidc = {config.issuer}: {error.name} is missing: install the extra `oidc` of "
            "roma-control-plane (in a checkout: pip install '.[oidc]')"
        ) from error
    return provider(config)

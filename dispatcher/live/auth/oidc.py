"""Bearer tokens of an identity provider (OpenID Connect), verified by its published keys.

The keys are fetched before clients are admitted, for which the provider has five seconds, and then
in the background, never while a request waits: every `refresh` seconds, and when a token names an
unknown key, at most once in ten seconds. While the provider is unreachable the previous keys stay
valid. Only asymmetric signatures are accepted: with HS256, anyone who knows the public key could
sign. `iss`, `aud`, `exp` and `nbf` are checked (RFC 8725, RFC 9068).

This is the only module that uses PyJWT, which is an extra.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jwt
import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout

from dispatcher.live.auth.callers import Caller, Denied
from dispatcher.live.auth.rate_limit import RateLimit
from roma.config.security import OidcConfig
from roma.telemetry.tasks import background, is_set_within

ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Signature algorithms by type of key."""

LEEWAY = 30.0
"""Seconds by which the provider's clock may differ."""

SOONEST = 10.0
"""Shortest time in seconds between two fetches for unknown keys."""

LIMIT = 5.0
"""Seconds that the provider may take."""

MOST_BYTES = 1 << 20
MOST_KEYS = 100
MOST_TOKENS = 10_000
"""Verified tokens, and subjects, that are remembered; the least recently used are evicted first."""

END = 253_402_300_800.0
"""Year 10000, in seconds since 1970: no date in a token is later."""

log = logging.getLogger(__name__)


class Provider:
    """An identity provider with its known `keys`; `unknown` is set when one is missing.

    `asked` is set once it has answered, or failed to.
    """

    def __init__(self, config: OidcConfig) -> None:
        self.unknown = asyncio.Event()
        self.asked = asyncio.Event()
        self._config = config
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._verified: OrderedDict[bytes, Caller] = OrderedDict()
        self._rate_limits: OrderedDict[str, RateLimit] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Provider {self._config.issuer}, {len(self._keys)} keys>"

    def take(self, keys: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the provider's keys; tokens of removed keys must be verified again."""
        if keys != self._keys:
            self._keys = dict(keys)
            self._verified.clear()

    def caller(self, token: str) -> Caller:
        """Return the caller of a token, or raise `Denied`; the caller has the token's expiry."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is not None:
            self._verified.move_to_end(digest)
            self._rate_limits.move_to_end(known.name)  # used no longer ago than its last token
            return known
        caller = self._caller(self._claims(token))
        self._verified[digest] = caller
        if len(self._verified) > MOST_TOKENS:
            self._verified.popitem(last=False)
        return caller

    def _key(self, kid: str) -> Mapping[str, Any] | None:
        """Return the key of a token: a provider's only key needs no id (OIDC Core §10.1)."""
        if len(self._keys) == 1 and (not kid or "" in self._keys):
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _claims(self, token: str) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(str(header.get("kid", "")))
            algorithm = header.get("alg")
            if key is None:
                self.unknown.set()
                raise Denied(401, "the token is signed with a key that is not known")
            if algorithm != key.get("alg", algorithm) or algorithm not in ALGORITHMS[key["kty"]]:
                raise Denied(401, "the token is signed in a way that is not accepted")
            claims: Mapping[str, Any] = jwt.decode(
                token,
                jwt.PyJWK(dict(key), algorithm),
                algorithms=[algorithm],
                audience=self._config.audience,
                issuer=self._config.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            _check_date(claims["exp"])
            if not str(claims["sub"]).strip():
                raise Denied(401, "the token names no subject: sub is empty")
            return claims
        except jwt.ExpiredSignatureError:
            raise Denied(401, "the token has expired") from None
        except (
            jwt.PyJWTError,
            ValueError,
            TypeError,
            KeyError,
            ArithmeticError,  # a date of Infinity
            RecursionError,  # a header of brackets
        ) as error:
            # The error's text may quote the token.
            raise Denied(401, f"the token is not valid: {type(error).__name__}") from None

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        config, subject = self._config, str(claims["sub"])
        rate_limit = self._rate_limits.setdefault(subject, RateLimit(config))
        self._rate_limits.move_to_end(subject)
        if len(self._rate_limits) > MOST_TOKENS:
            self._rate_limits.popitem(last=False)
        models: object = config.models
        if config.models_claim is not None:
            models = claims.get(config.models_claim, models)
        if isinstance(models, str):
            models = models.split()  # like `scope`
        listed = models if isinstance(models, list | tuple) else ()
        scope = None if "*" in listed else frozenset(str(model) for model in listed)
        expires = float(claims["exp"]) + LEEWAY
        return Caller(subject, config, rate_limit, models=scope, expires=expires)


def _check_date(value: object) -> None:
    """Raise ValueError for a value that is no NumericDate (RFC 7519 §2); fractions are allowed."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < END:  # type: ignore[operator]
        raise ValueError("exp is no moment")


def usable(document: object) -> dict[str, Mapping[str, Any]]:
    """Return the usable signing keys of a JSON Web Key Set (RFC 7517) by id, "" without one."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is no key set")
    found: dict[str, Mapping[str, Any]] = {}
    for key in listed[:MOST_KEYS]:
        if not isinstance(key, dict) or key.get("use", "sig") != "sig":
            continue
        names = ALGORITHMS.get(str(key.get("kty")), ())
        algorithm = key.get("alg", names[0] if names else None)
        kid = key.get("kid", "")
        if algorithm not in names or not isinstance(kid, str):
            continue
        with contextlib.suppress(jwt.PyJWTError, ValueError, TypeError):
            made = jwt.PyJWK(key, algorithm)
            if getattr(made.key, "key_size", 2048) >= 2048 or key["kty"] != "RSA":
                found[kid] = key
    return found


async def fetch(config: OidcConfig, session: ClientSession) -> dict[str, Mapping[str, Any]]:
    """Fetch the provider's keys; raise ValueError, ClientError, OSError or TimeoutError."""
    url = config.jwks_url
    if url is None:
        address = f"{config.issuer.rstrip('/')}/.well-known/openid-configuration"
        document = await _get(session, address)
        # OpenID Connect Discovery, section 4.3: otherwise another issuer's keys would be accepted.
        if not isinstance(document, dict) or document.get("issuer") != config.issuer:
            raise ValueError(f"{address} speaks of another issuer")
        url = str(document.get("jwks_uri", ""))
        if not url.startswith("https://") and config.issuer.startswith("https://"):
            raise ValueError(f"{address} names keys that are not at https")
    keys = usable(await _get(session, url))
    if not keys:
        raise ValueError(f"{url} has no key that could sign")
    return keys


async def _get(session: ClientSession, url: str) -> object:
    # No redirect: the address is configured, or given by the issuer, and a server elsewhere is
    # neither.
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url}: status {response.status}")
        body = b""
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > MOST_BYTES:
                raise ValueError(f"{url}: larger than {MOST_BYTES} bytes")
        return orjson.loads(body)


@contextlib.asynccontextmanager
async def provider(config: OidcConfig) -> AsyncIterator[Provider]:
    """Yield the provider, whose keys are kept up to date until the block ends."""
    found = Provider(config)
    async with (
        ClientSession(timeout=ClientTimeout(total=LIMIT)) as session,
        background(_keep(found, config, session)),
    ):
        # Without keys a valid token is a 401, after which no client tries again.
        await is_set_within(found.asked, LIMIT)
        yield found


async def _keep(found: Provider, config: OidcConfig, session: ClientSession) -> None:
    said = ""
    while True:
        found.unknown.clear()
        try:
            found.take(await fetch(config, session))
            if said:
                log.info("the identity provider %s answers again", config.issuer)
            said = ""
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            if why != said:
                log.warning("no keys from the identity provider %s: %s", config.issuer, why)
            said = why
        found.asked.set()
        await asyncio.sleep(SOONEST)
        # Without keys no token is accepted, so fetch them again soon.
        await is_set_within(found.unknown, 0 if said else config.refresh - SOONEST)

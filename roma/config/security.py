"""Sections of roma.yaml on authentication: permitted clients, TLS and shared secrets.

Files are relative to roma.yaml. roma.yaml itself holds no secrets, only the names of the files that
hold them, so it may be shown to anyone.
"""

import ipaddress
import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from roma.config.workers import AT_A_PORT, HOST_PORT, Name
from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain.addresses import authority
from roma.domain.model import Priority

PeerUrl = Annotated[str, Field(pattern=rf"^https?://{HOST_PORT}$"), AT_A_PORT]
"""URL under which one of ROMA's own programs reaches another."""

WebUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#@]{1,2000}$")]

_NAME = TypeAdapter(Name)


def _named(scope: tuple[str, ...] | Literal["*"]) -> tuple[str, ...] | Literal["*"]:
    """Refuse what cannot be a model's name, without a word of it: it may be a secret."""
    for name in () if scope == "*" else scope:
        try:
            _NAME.validate_python(name)
        except ValidationError:
            raise PydanticCustomError("form", 'must be names of models, or "*" for all') from None
    return scope


Scope = Annotated[tuple[str, ...] | Literal["*"], AfterValidator(_named)]
"""Models that a caller may use: their names, or `*` for all."""


class Limits(Section):
    """Limits of one caller."""

    rate: Annotated[float, Field(ge=1e-6, le=1_000_000, allow_inf_nan=False)] | None = None
    """Most requests per second in the long run; default: no limit."""
    burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most requests at once; default: the requests of one second, at least one."""
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most requests waiting or running at once; default: no limit."""
    priority: Priority = Priority.INTERACTIVE
    """Highest priority that the caller may use."""

    @model_validator(mode="after")
    def _check_burst(self) -> "Limits":
        if self.burst is not None and self.rate is None:
            raise Fault("burst", self.burst, "absent without rate")
        return self

    @property
    def effective_burst(self) -> float:
        """The burst with its default filled in."""
        return float(self.burst or max(1, math.ceil(self.rate or 1)))


class TlsConfig(Section):
    """A listener's certificate. Changed files are read again and apply to new connections."""

    certificate: FilePath
    """PEM: the certificate, followed by its chain of intermediates."""
    key: FilePath
    """PEM, without a password."""
    client_ca: FilePath | None = None
    """PEM with authorities: callers must present a certificate of one of them (mutual TLS)."""
    ca: FilePath | None = None
    """PEM with the authority by which ROMA's own programs verify this listener; default: the
    system's authorities."""


class TokensConfig(Section):
    """Files with the secrets shared by ROMA's programs and people; see `roma keys token`."""

    admin: FilePath | None = None
    """Secret for the dashboard and its data: a bearer token, or a password in a browser."""
    exchange: FilePath | None = None
    """Secret by which dispatchers and supervisors authenticate each other."""
    metrics: FilePath | None = None
    """Secret for /metrics."""


class OidcConfig(Limits):
    """Bearer tokens of an identity provider, by OpenID Connect; needs the extra `oidc`.

    The limits apply to each subject.
    """

    issuer: WebUrl
    """Issuer, exactly as in the tokens."""
    audience: Annotated[str, Field(min_length=1, max_length=256)]
    """Audience of the tokens for this gateway."""
    jwks_url: WebUrl | None = None
    """URL of the public keys; default: from the issuer's discovery document."""
    models_claim: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Claim that lists the models a token may call; default: none, `models` applies to all."""
    models: Scope = ()
    """Models that a token without that claim may call, or "*"."""
    refresh: Annotated[float, Field(ge=10, le=86400)] = 300.0
    """Seconds between two fetches of the keys."""

    @model_validator(mode="after")
    def _check(self) -> "OidcConfig":
        if self.models_claim is None and not self.models:
            raise Fault("models", "[]", 'set where models_claim is not: names, or "*" for all')
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is not None and url.startswith("http://") and not is_loopback(_host(url)):
                # An attacker who can change the keys in transit can issue tokens.
                raise Fault(name, url, "https, or on this machine")
        return self


def is_loopback(host: str) -> bool:
    """Return whether a listener on this address can be reached only from this machine."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name: who knows what it will stand for
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def reachable(host: str, port: int, *, tls: bool) -> str:
    """Return the URL under which a program on this machine reaches a listener."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http{'s' * tls}://{authority(host, port)}"


def _host(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]

"""Sections of roma.yaml that say who may connect, and how either side proves who it is.

Files are relative to roma.yaml. roma.yaml itself holds no secret, only the names of the files that
do: it may be shown to anybody.
"""

import ipaddress
import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain.model import Priority

PeerUrl = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*:[0-9]{1,5}$")]
"""Where one of ROMA's own programs reaches another."""

WebUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#@]{1,2000}$")]

Scope = tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] | Literal["*"]
"""The models that a caller may use: their names, or all."""


class Limits(Section):
    """What one caller may do, among those who may call."""

    rate: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Requests per second in the long run; default: no limit."""
    burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests at once; default: those of a second, at least one."""
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most requests that wait or run at once; default: no limit."""
    priority: Priority = Priority.INTERACTIVE
    """The highest it may use."""

    @model_validator(mode="after")
    def _check_burst(self) -> "Limits":
        if self.burst is not None and self.rate is None:
            raise Fault("burst", self.burst, "absent where rate is")
        return self

    @property
    def effective_burst(self) -> float:
        """The burst with its default filled in."""
        return float(self.burst or max(1, math.ceil(self.rate or 1)))


class _Files(Section):
    """A section whose fields are files, or nothing."""

    def relative_to(self, base: Path) -> Self:
        """Return it with its paths taken from `base`, the directory of roma.yaml."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return self.model_copy(
            update={name: base / path for name, path in found.items() if path is not None}
        )


class TlsConfig(_Files):
    """A listener's certificate. Files are read anew when they change, for new connections."""

    certificate: FilePath
    """PEM: the certificate, then those that lead to its authority."""
    key: FilePath
    """PEM, without a password."""
    client_ca: FilePath | None = None
    """PEM with authorities: callers must show a certificate of one of them (mutual TLS)."""
    ca: FilePath | None = None
    """PEM with the authority by which ROMA's own programs know this listener; default: the
    system's."""


class TokensConfig(_Files):
    """Files with the secrets that ROMA's own programs and people share; see `roma keys token`."""

    admin: FilePath | None = None
    """Opens the live page and what it reads: as bearer token, or as password in a browser."""
    exchange: FilePath | None = None
    """Dispatchers and supervisors know each other by it."""
    metrics: FilePath | None = None
    """Opens /metrics."""


class OidcConfig(Limits):
    """Bearer tokens of an identity provider, by OpenID Connect; needs the extra `oidc`.

    The limits are those of each subject.
    """

    issuer: WebUrl
    """Exactly as the tokens say it."""
    audience: Annotated[str, Field(min_length=1, max_length=256)]
    """What tokens for this gateway are issued for."""
    jwks_url: WebUrl | None = None
    """Where its public keys are; default: what the issuer's discovery document says."""
    models_claim: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Claim that lists the models a token may call; default: none, `models` holds for all."""
    models: Scope = ()
    """Models that a token without that claim may call, or "*"."""
    refresh: Annotated[float, Field(ge=10, le=86400)] = 300.0
    """Seconds between two looks at the keys."""

    @model_validator(mode="after")
    def _check(self) -> "OidcConfig":
        if self.models_claim is None and not self.models:
            raise Fault("models", "[]", 'set where models_claim is not: names, or "*" for all')
        for name in ("issuer", "jwks_url"):
            url = getattr(self, name)
            if url is not None and url.startswith("http://") and not is_loopback(_host(url)):
                # Whoever can change the keys on their way issues tokens.
                raise Fault(name, url, "https, or on this machine")
        return self


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listener on this address."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name: who knows what it will stand for
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def reachable(host: str, port: int, *, tls: bool) -> str:
    """Return the URL under which a program of this machine reaches a listener."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http{'s' * tls}://{f'[{host}]' if ':' in host else host}:{port}"


def _host(url: str) -> str:
    authority = url.partition("://")[2].partition("/")[0]
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]

"""TLS contexts for listeners and callers, which reload their certificates at run time.

A new connection uses the current files; an existing one keeps the certificate it began with. TLS
1.2 with forward secrecy and authenticated encryption, or TLS 1.3; no compression, no renegotiation.
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roma.config.security import TlsConfig
from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError, naming

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2: Mozilla's "intermediate" list without the slow DHE. TLS 1.3 keeps its
defaults."""


class RenewedContext(ssl.SSLContext):
    """A TLS context that begins each connection with the current content of its files.

    asyncio and uvloop hold one context per listener and call its `wrap_bio` for each connection.
    That call is passed on to a context made from the current files. Loading a certificate into the
    existing context instead would never remove an authority, and a certificate without its key
    would break the context.
    """

    _fresh: Watched[ssl.SSLContext]

    @classmethod
    def of(cls, paths: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> "RenewedContext":
        """Return a context of these files; raise ConfigError if they are invalid now."""
        fresh = Watched(paths, make)
        context = cls(fresh.value.protocol)
        context._fresh = fresh
        return context

    def look(self) -> bool:
        """Reload the files if they changed and are valid; see `roma.config.watched_file`."""
        return self._fresh.look()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self._fresh.value.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Begin a connection for callers such as urllib."""
        return self._fresh.value.wrap_socket(*args, **options)


def server_context(tls: TlsConfig, key: str = "") -> RenewedContext:
    """Return a listener's context; with `client_ca`, callers must present a certificate.

    `key` is the section's key, with which faults begin.
    """

    def make() -> ssl.SSLContext:
        context = _hardened(ssl.PROTOCOL_TLS_SERVER)
        _show(context, tls, key)
        if tls.client_ca is not None:
            with naming(_within(key, "client_ca")):
                _trust(context, tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["http/1.1"])
        return context

    return RenewedContext.of(_paths(tls.certificate, tls.key, tls.client_ca), make)


def client_context(
    ca: Path | None, own: TlsConfig | None = None, *, key: str = "", own_key: str = ""
) -> RenewedContext:
    """Return a caller's context, which presents the caller's own certificate if asked.

    `key` is the configuration key of `ca`, `own_key` that of the section `own`.
    """

    def make() -> ssl.SSLContext:
        context = _hardened(ssl.PROTOCOL_TLS_CLIENT)
        if ca is None:
            context.load_default_certs()
        else:
            with naming(key):
                _trust(context, ca)
        if own is not None:
            _show(context, own, own_key)
        return context

    mine = () if own is None else (own.certificate, own.key)
    return RenewedContext.of(_paths(ca, *mine), make)


def certificate_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the name in a verified peer's certificate, given as `SSLObject.getpeercert()` does.

    The first URI, DNS or mail name, in this order; the CN only if there is none (RFC 9525).
    """
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    for wanted in ("URI", "DNS", "email"):
        for kind, name in names:
            if kind == wanted:
                return str(name)
    for part in certificate.get("subject", ()):
        for kind, name in part:
            if kind == "commonName":
                return str(name)
    return None


def _hardened(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _show(context: ssl.SSLContext, tls: TlsConfig, key: str) -> None:
    for field, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            path.open("rb").close()  # OpenSSL does not say which of the two it could not read
        except OSError as error:
            with naming(_within(key, field)):
                raise ConfigError(f"{path}: cannot be read: {_reason(error)}") from None
    asked: list[None] = []

    def ask() -> str:
        asked.append(None)
        return ""

    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=ask)
    except (OSError, ValueError) as error:
        if asked:
            with naming(_within(key, "key")):
                raise ConfigError(f"{tls.key}: has a password: must have none") from None
        with naming(_within(key, "certificate")):
            raise ConfigError(
                f"{tls.certificate} with key {tls.key}: cannot be used: {_reason(error)}"
            ) from None


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ca}: no authorities can be read: {_reason(error)}") from None


def _within(section: str, field: str) -> str:
    return f"{section}.{field}" if section else ""


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return getattr(error, "strerror", None) or type(error).__name__


def _paths(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]

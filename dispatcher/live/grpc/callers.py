"""Credentials of gRPC callers for `access`, and TLS on the gRPC port.

gRPC accepts no `ssl.SSLContext`: it reads PEM files itself, anew for each handshake after a change
of them. If a file is wrong, the old ones stay in force.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from dispatcher.live.auth.access import Credentials, Denied
from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.grpc.responses import RefusedCall, bad_request, refusal
from roma.config.security import TlsConfig
from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError
from roma.domain.model import Priority
from roma.security.tls import server_context

CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def credentials(context: Any) -> Credentials:
    """Return a call's credentials; `context` is a grpc.aio.ServicerContext."""
    return Credentials(
        metadata(context, "authorization"),
        metadata(context, "x-api-key"),
        context.peer(),
        certificate_name(context.auth_context()),
    )


def address(context: Any) -> str:
    """Return a caller's address, without the port; gRPC writes ipv6:%5B::1%5D:50051."""
    peer: str = context.peer()
    return unquote(peer.rpartition(":")[0].partition(":")[2]).strip("[]")


def certificate_name(auth: Mapping[str, Sequence[bytes]]) -> str | None:
    """Return the name of a verified client, as `roma.security.tls.certificate_name` does."""
    for kind in ("peer_uri", "peer_dns", "peer_email", "x509_common_name"):
        for name in auth.get(kind, ()):
            return name.decode("utf-8", "replace")
    return None


def priority(context: Any, highest: Priority) -> Priority:
    """Return the priority with which a call waits; raise RefusedCall."""
    asked = metadata(context, "x-request-priority")
    try:
        wanted = highest if asked is None else Priority(asked)
    except ValueError:
        known = " or ".join(Priority)
        raise bad_request(f"x-request-priority: {asked}: must be {known}") from None
    return Priority.LOW if Priority.LOW in (wanted, highest) else Priority.INTERACTIVE


def refused(error: RefusedCall | Denied) -> GrpcResponse:
    """Return the answer to a call that is refused, or whose caller is not admitted."""
    if isinstance(error, Denied):
        return refusal(CODES[error.status], str(error), retry_after=error.retry_after)
    return error.answer


class ServerTls:
    """The gRPC port's certificate; check `watched` regularly (`roma.config.watched_file`)."""

    def __init__(self, tls: TlsConfig, key: str) -> None:
        self._tls = tls
        self._key = key
        paths = [p for p in (tls.certificate, tls.key, tls.client_ca) if p is not None]
        self.watched = Watched(paths, self._read)
        self._given = self.watched.value

    @property
    def credentials(self) -> Any:
        """The gRPC server's credentials."""
        return grpc.dynamic_ssl_server_credentials(
            self._given, self._fresh, require_client_authentication=self._tls.client_ca is not None
        )

    def _fresh(self) -> Any:
        """Return the files' content if it differs from what gRPC has, else None."""
        if self.watched.value is self._given:
            return None
        self._given = self.watched.value
        return self._given

    def _read(self) -> Any:
        server_context(self._tls, self._key)  # it reports what is wrong with them; gRPC would not
        try:
            ca = None if self._tls.client_ca is None else self._tls.client_ca.read_bytes()
            pair = self._tls.key.read_bytes(), self._tls.certificate.read_bytes()
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return grpc.ssl_server_certificate_configuration([pair], ca)


def log_no_metadata() -> None:
    """Drop gRPC's tracebacks about metadata that is no UTF-8: each quotes it, perhaps a key."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_quotes_nothing)


def _quotes_nothing(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], UnicodeDecodeError)


def metadata(context: Any, name: str) -> str | None:
    """Return a value of a call's metadata; values of one name are one list, as in HTTP."""
    found = [value for key, value in context.invocation_metadata() or () if key == name]
    if not found:
        return None
    return ",".join(v.decode("latin-1") if isinstance(v, bytes) else v for v in found)

"""Calls to a Kubernetes API server, by plain HTTP: decision 22 has what a client library costs."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson
from aiohttp import (
    AddrInfoType,
    ClientConnectorCertificateError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    StreamReader,
    TCPConnector,
)

from roma.domain.errors import ActuationError
from roma.kubernetes.credentials import ClusterCredentials
from roma.telemetry.reachability import reason

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
"""The patch that `pods/resize` takes; it refuses application/merge-patch+json with 422."""

MOST_LINE: Final = 8 * 2**20
"""Most bytes of one event of a watch: objects are at most 1.5 MB in etcd."""

LEAST_VERSION: Final = (1, 33)
"""The first in which the subresource `resize` is on by default (KEP-1287, beta)."""

QUIET: Final = 150.0
"""Seconds without a byte after which a watch counts as broken: bookmarks come about once a
minute."""

KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A host that no longer answers is noticed after 10 + 3 × 5 s: nothing is sent on a watch, so
without probes only `QUIET` would end it, and pods that went meanwhile would stay (tcp(7))."""

MOST_RETRY_AFTER: Final = 30.0
"""Longest Retry-After in seconds that is heeded: the server sends 1 in overload, 5 at shutdown."""


class ApiServerError(ActuationError):
    """The API server refused, failed or did not answer (`status` 0).

    `retry_after` is its Retry-After in seconds, at most `MOST_RETRY_AFTER`; 0 without one.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def is_passing(self) -> bool:
        """True if the same call may succeed later without a change by anybody."""
        return self.status in (0, 409, 429) or self.status >= 500


class Client:
    """An API server, as one identity; every failure is an `ApiServerError`."""

    def __init__(self, credentials: ClusterCredentials) -> None:
        self.credentials = credentials
        self._opened: ClientSession | None = None

    @property
    def _session(self) -> ClientSession:
        """The connections, opened by the first call: a client that makes none holds nothing."""
        if self._opened is None:
            tls = self.credentials.tls
            connector = TCPConnector(
                ssl=True if tls is None else tls, limit=0, socket_factory=_probing
            )
            self._opened = ClientSession(connector=connector)
        return self._opened

    async def close(self) -> None:
        """Close every connection."""
        if self._opened is not None:
            await self._opened.close()
            # What was aborted, as every watch is, is closed in the next turn of the loop.
            await asyncio.sleep(0)

    async def get(self, path: str, timeout: float, **query: str) -> dict[str, Any]:
        """Return the object at a path; `timeout` in seconds."""
        return await self._call("GET", path, timeout, query=query)

    async def patch(self, path: str, body: object, timeout: float) -> dict[str, Any]:
        """Apply a strategic merge patch; return the object as it is now."""
        return await self._call("PATCH", path, timeout, body=body, kind=STRATEGIC_MERGE)

    async def put(self, path: str, body: object, timeout: float) -> dict[str, Any]:
        """Replace an object; return it as it is now."""
        return await self._call("PUT", path, timeout, body=body)

    async def post(self, path: str, body: object, timeout: float) -> dict[str, Any]:
        """Create an object; return it."""
        return await self._call("POST", path, timeout, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = kind
        try:
            async with self._session.request(
                method,
                self.credentials.server + path,
                params=query,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=ClientTimeout(total=timeout),
            ) as response:
                said = await response.read()
                if response.status >= 300:
                    raise self._refusal(response, said)
                found: dict[str, Any] = orjson.loads(said)
        except (ClientError, TimeoutError, OSError) as error:
            raise self._silence(error) from error
        except ValueError as error:
            raise ApiServerError(f"{self.credentials.server}: its answer is no JSON") from error
        if not _is_object(found):
            raise ApiServerError(f"{self.credentials.server}: its answer is no object")
        return found

    async def too_old(self, timeout: float) -> str:
        """Return why this server cannot resize pods in place; "" if it can, or does not answer."""
        try:
            found = await self.get("/version", timeout)
            version = int(found["major"]), int(str(found["minor"]).rstrip("+"))
        except (ApiServerError, KeyError, TypeError, ValueError):
            return ""
        if version >= LEAST_VERSION:
            return ""
        return f"API server {found.get('gitVersion', '')}: in-place resize takes 1.33 or newer"

    async def watch(
        self, path: str, opened: Callable[[], None], **query: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it; call `opened` once it begins."""
        timeout = ClientTimeout(total=None, sock_connect=5, sock_read=QUIET)
        url = self.credentials.server + path
        try:
            async with self._session.get(
                url, params={**query, "watch": "1"}, headers=self._headers(), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise self._refusal(response, await response.read())
                opened()
                try:
                    async for line in _lines(response.content):
                        event = orjson.loads(line)
                        if not isinstance(event, dict) or not _is_object(event.get("object")):
                            raise ApiServerError(f"{url}: an event that has no object")
                        yield event
                finally:
                    # Its body never ends: a closing handshake would wait for the rest of it.
                    if response.connection is not None and response.connection.transport:
                        response.connection.transport.abort()
        except (ClientError, TimeoutError, OSError) as error:
            raise self._silence(error) from error
        except ValueError as error:
            raise ApiServerError(f"{url}: an event that is no JSON") from error

    def _headers(self) -> dict[str, str]:
        token = self.credentials.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _silence(self, error: Exception) -> ApiServerError:
        """Return the error for no answer; the next call trusts a new authority."""
        if isinstance(error, ClientConnectorCertificateError):
            self.credentials.renew()
        return ApiServerError(f"{self.credentials.server}: not reachable: {reason(error)}")

    def _refusal(self, response: ClientResponse, said: bytes) -> ApiServerError:
        """Return the error for an answer: its Status object has the reason in words."""
        status, rest = response.status, response.headers.get("Retry-After", "")
        try:
            words = orjson.loads(said)["message"]
        except (ValueError, KeyError, TypeError):
            words = said[:200].decode("utf-8", "replace")
        if status == 401:
            words = f"{words}: the credentials of {self.credentials.source} are not accepted"
        # A date is what proxies send; then the usual pause must do.
        retry_after = min(float(rest), MOST_RETRY_AFTER) if rest.isdecimal() else 0.0
        message = f"{self.credentials.server}: status {status}: {words}"
        return ApiServerError(message, status, retry_after)


def _probing(address: AddrInfoType) -> socket.socket:
    """Return a socket that notices when the other host is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # all of them on Linux
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _is_object(found: object) -> bool:
    """Return whether this may be an object of the API: one with a metadata, if it has any."""
    return isinstance(found, dict) and isinstance(found.get("metadata") or {}, dict)


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a body; aiohttp's own reader bounds them by 128 KiB."""
    rest = b""
    async for part in content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MOST_LINE:
            raise ApiServerError(f"an event of more than {MOST_LINE} bytes")

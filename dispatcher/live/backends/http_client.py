"""A lean HTTP/1.1 client for model servers: keep-alive, one request per connection at a time.

It uses callbacks instead of a task per request and passes bytes through: the aiohttp client costs
more than the rest of the request path together (a factor of four in throughput). A request is sent
a second time, on a new connection, only if a connection that had been idle was closed meanwhile and
the kernel reports that the request never arrived. Otherwise a broken connection is an error. (RFC
9112 §9.3.1; nginx and Envoy do not repeat a POST that was sent, because they cannot know.)
"""

import asyncio
import errno
import logging
import math
import time
from socket import EAI_AGAIN, gaierror
from typing import Final, cast

from dispatcher.live.backends.http_connection import (
    Attempt,
    BackendConnection,
    ConnectionOwner,
    Done,
)
from dispatcher.live.http.header_cache import HeaderCache
from dispatcher.live.http.messages import (
    Message,
    RequestTemplate,
    Response,
    ResponseTemplate,
    content_length,
)
from roma.domain.addresses import authority
from roma.domain.errors import (
    BackendAway,
    BackendError,
    BackendSilent,
    BackendUnreachable,
)
from roma.telemetry.reachability import reason
from roma.telemetry.tasks import cancel

log: Final = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 1.5
"""Seconds; a model server is in the same host or rack. The kernel retries after one second (RFC
6298 §2), so a single lost packet is no timeout."""

MAX_IDLE: Final = 64
"""Idle connections kept per backend."""

MOST_REST: Final = 4.0
"""Seconds after which an idle connection is closed, at the earliest after half of them: before the
server closes it. uvicorn, behind most model servers in Python, closes after five."""

MOST_ANSWER: Final = 256 * 2**20
"""Default limit of an answer's body, in bytes."""

SWEEP: Final = 0.1
"""Seconds between two sweeps for timed-out requests: a timer for each would cost 6 % of a core."""

_monotonic: Final = time.monotonic

_LOCALHOST: Final = "Host: localhost\r\n"

_UNREACHED: Final[dict[int, type[BackendError]]] = {
    errno.EHOSTUNREACH: BackendAway,
    errno.ENETUNREACH: BackendAway,
    errno.ENOENT: BackendUnreachable,  # a Unix socket that does not exist (yet or any more)
    errno.EAGAIN: BackendSilent,  # its backlog is full: connections are accepted too slowly
    EAI_AGAIN: BackendSilent,  # a name server that does not answer
}
"""Meaning of a failure to connect; others are local faults, such as running out of descriptors."""

MAX_PREFIXES: Final = 256
"""Beginnings of headers remembered per backend."""


class Pool(ConnectionOwner):
    """The connections to one model server.

    `kinds` caches answer headers. Several pools may have the same one, since many headers do not
    identify the server; by default each has its own.
    """

    def __init__(
        self,
        host: str,
        port: int,
        socket: str | None = None,
        *,
        most: int = MOST_ANSWER,
        kinds: HeaderCache[ResponseTemplate] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.socket = socket
        """Path of a Unix socket to connect to instead."""
        self.most = most
        """Largest body accepted, in bytes."""
        self._authority = authority(host, port)
        self._host_header = f"Host: {self._authority}\r\n" if socket is None else _LOCALHOST
        self.kinds: HeaderCache[ResponseTemplate] = HeaderCache() if kinds is None else kinds
        self._prefixes: dict[RequestTemplate, bytes] = {}
        self._idle: list[BackendConnection] = []
        self.keeps = False
        self._all: set[BackendConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._ager: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.where}: {len(self._all)} open, {len(self._idle)} idle>"

    @property
    def where(self) -> str:
        """Its address, for messages."""
        return self.socket or self._authority

    def send(self, message: Message, done: Done, *, timeout: float, more: str = "") -> Attempt:
        """Send a message; `done` is called exactly once, from the event loop.

        `more` are whole header lines beside the message's own.
        """
        template, body = message.template, message.body
        prefix = self._prefixes.get(template) or self._prefix(template)
        if more:
            prefix += more.encode("latin-1")
        head = prefix + content_length(len(body))
        return self._request(head, body, done, timeout, self.most)

    def _request(self, head: bytes, body: bytes, done: Done, timeout: float, most: int) -> Attempt:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.send(head, body, done, timeout, most)
                return connection
        return self.connect(head, body, done, timeout, most)

    def connect(self, head: bytes, body: bytes, done: Done, timeout: float, most: int) -> Attempt:
        """Send a request on a new connection, as `BackendConnection.send` does."""
        connecting = Connecting(done)
        task = asyncio.get_running_loop().create_task(
            self._connect(head, body, connecting, timeout, most)
        )
        self._connecting.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            if task.cancelled():  # perhaps before it began: nothing in it sees that
                text = f"given up while connecting to {self.where}"
                connecting.done(BackendUnreachable(text))

        task.add_done_callback(ended)
        return connecting

    def _prefix(self, template: RequestTemplate) -> bytes:
        """Return the beginning of the headers that many requests share."""
        encoding = (
            f"Content-Encoding: {template.content_encoding}\r\n"
            if template.content_encoding
            else ""
        )
        prefix = (
            f"POST {template.path} HTTP/1.1\r\n{self._host_header}"
            f"Content-Type: {template.content_type}\r\n{encoding}{template.more}"
        ).encode("latin-1")
        if not template.is_usual:
            return prefix
        if len(self._prefixes) >= MAX_PREFIXES:  # clients may invent types
            self._prefixes.clear()
        self._prefixes[template] = prefix
        return prefix

    async def fetch(
        self, path: str, *, timeout: float, most: int | None = None, is_fresh: bool = False
    ) -> Response:
        """Get a path; raise a `BackendError`, also for more than `most` bytes.

        If `is_fresh`, over a new connection: idle ones may go on where no new one is accepted.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def done(result: Response | BackendError) -> None:
            if future.done():
                return
            if isinstance(result, Response):
                future.set_result(result)
            else:
                future.set_exception(result)

        head = f"GET {path} HTTP/1.1\r\n{self._host_header}\r\n".encode("latin-1")
        send = self.connect if is_fresh else self._request
        attempt = send(head, b"", done, timeout, self.most if most is None else most)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done():  # otherwise the connection may carry another request by now
                attempt.abort()
            raise

    def deadline(self, timeout: float) -> float:
        """Return the deadline of a request that is sent now, and start the sweep for it."""
        if self._sweeper is None:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(min(SWEEP, timeout), self._sweep)
        return _monotonic() + timeout

    def _sweep(self) -> None:
        now, self._sweeper = _monotonic(), None
        for connection in [c for c in self._all if c.deadline <= now]:
            connection.on_timeout()
        busy = any(c.deadline < math.inf for c in self._all)
        if busy and self._is_resting():
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _is_resting(self) -> bool:
        return self._sweeper is None

    def release(self, connection: BackendConnection) -> None:
        """Take back a connection that can be used again."""
        self.keeps = True
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
            if self._ager is None:
                self._ager = asyncio.get_running_loop().call_later(MOST_REST / 2, self._age)
        elif connection.transport is not None:
            connection.transport.close()

    def _age(self) -> None:
        """Close connections idle since the last check, and mark those that are idle now."""
        self._ager = None
        stale = [connection for connection in self._idle if connection.is_stale]
        self._idle = [connection for connection in self._idle if not connection.is_stale]
        for connection in stale:
            if connection.transport is not None:
                connection.transport.close()
        for connection in self._idle:
            connection.is_stale = True
        if self._idle:
            self._ager = asyncio.get_running_loop().call_later(MOST_REST / 2, self._age)

    def forget(self, connection: BackendConnection) -> None:
        """Remove a closed connection."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close every connection; requests in flight end with an error."""
        for timer in (self._sweeper, self._ager):
            if timer is not None:
                timer.cancel()
        await cancel(self._connecting)
        for connection in list(self._all):
            connection.fail()
        # One turn of the loop lets the transports close.
        await asyncio.sleep(0)

    async def _connect(
        self, head: bytes, body: bytes, connecting: "Connecting", timeout: float, most: int
    ) -> None:
        loop, connection = asyncio.get_running_loop(), BackendConnection(self)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if self.socket is not None:
                    await loop.create_unix_connection(
                        lambda: cast(asyncio.Protocol, connection), self.socket
                    )
                else:
                    await loop.create_connection(
                        lambda: cast(asyncio.Protocol, connection), self.host, self.port
                    )
        except TimeoutError:
            connecting.done(
                BackendAway(f"cannot connect to {self.where} within {CONNECT_TIMEOUT:g} s")
            )
            return
        except ConnectionError as error:
            connecting.done(BackendUnreachable(f"cannot connect to {self.where}: {reason(error)}"))
            return
        except OSError as error:
            connecting.done(_kind(error)(f"cannot connect to {self.where}: {error}"))
            return
        except Exception as error:  # whatever the error is, `done` must be called
            log.exception("cannot connect to %s", self.where)
            connecting.done(BackendError(f"cannot connect to {self.where}: {error}"))
            return
        self._all.add(connection)
        if connecting.is_aborted:
            self.release(connection)
            return
        connecting.connection = connection
        connection.send(head, body, connecting.done, timeout, most)


class Connecting:
    """A message that waits for its connection."""

    __slots__ = ("connection", "done", "is_aborted")

    def __init__(self, done: Done) -> None:
        self.done = done
        self.connection: BackendConnection | None = None
        self.is_aborted = False

    def abort(self) -> None:
        """Send nothing, or close the connection that it was sent on."""
        self.is_aborted, self.done = True, _nobody
        if self.connection is not None:
            self.connection.abort()


def _kind(error: OSError) -> type[BackendError]:
    """Return the meaning of a failure to connect."""
    # No number: several addresses of one name failed, each in its own way.
    is_elsewhere = error.errno is None or isinstance(error, gaierror)
    return _UNREACHED.get(error.errno or 0, BackendUnreachable if is_elsewhere else BackendError)


def _nobody(_: Response | BackendError) -> None:
    """Ignore an answer that no client waits for."""

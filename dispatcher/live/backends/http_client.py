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
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from dispatcher.live.backends import tcp
from dispatcher.live.http.header_cache import HeaderCache, MissStreak
from dispatcher.live.http.messages import (
    Message,
    RequestTemplate,
    Response,
    ResponseTemplate,
    content_length,
)
from roma.domain.errors import (
    BackendError,
    BackendLost,
    BackendSilent,
    BackendTimeout,
    BackendTooLarge,
    BackendUnreachable,
)
from roma.telemetry.reachability import reason

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

MOST_HEAD: Final = 256 * 2**10
"""Limit in bytes of the headers and the interim responses before them: the size of one read."""

SWEEP: Final = 0.1
"""Seconds between two sweeps for timed-out requests: a timer for each would cost 6 % of a core."""

_monotonic: Final = time.monotonic

_LOCALHOST: Final = "Host: localhost\r\n"

_UNREACHED: Final[dict[int, type[BackendError]]] = {
    errno.EHOSTUNREACH: BackendUnreachable,
    errno.ENETUNREACH: BackendUnreachable,
    errno.ENOENT: BackendUnreachable,  # a Unix socket that does not exist (yet or any more)
    errno.EAGAIN: BackendSilent,  # its backlog is full: connections are accepted too slowly
}
"""Meaning of a failure to connect; others are local faults, such as running out of descriptors."""

MAX_PREFIXES: Final = 256
"""Beginnings of headers remembered per backend."""

KINDS: Final[HeaderCache[ResponseTemplate]] = HeaderCache()
"""Cached answer headers of all model servers: many of them do not identify the server."""

Done = Callable[[Response | BackendError], None]


class Attempt(Protocol):
    """A message in flight."""

    def abort(self) -> None:
        """Close at once: the executable is lost, or its model was removed."""


class BackendConnection:
    """One TCP connection; `send` may be called again after `done` was.

    It implements asyncio's protocol without the base class: a compiled class cannot have that.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_content_encoding",
        "_content_type",
        "_done",
        "_habit",
        "_head",
        "_is_framed",
        "_is_fresh",
        "_is_odd",
        "_keeps",
        "_message",
        "_more",
        "_parser",
        "_pool",
        "_repeated",
        "_room",
        "_size",
        "_until_close",
        "_written",
        "deadline",
        "is_stale",
        "most",
        "timeout",
        "transport",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._done: Done | None = None
        self._until_close = False
        self._answer: Response | None = None
        self._keeps = False
        """True if the connection can be used again."""
        self._habit = MissStreak()
        self._is_fresh = False
        """True while nothing of the answer has arrived."""
        self._is_odd = False
        """True if more arrived than was requested."""
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self._head = self._message = b""
        """The request that was sent last."""
        self._written = 0
        """Bytes of all requests."""
        self._repeated: Attempt | None = None
        """The retry of the last request, if any."""
        self.is_stale = False
        """True if the connection has been idle since the pool's last check."""
        self.deadline = math.inf
        self.timeout = math.inf
        self.most = 0
        self._room = 0
        """Bytes that may still arrive, with the framing of a chunked body."""
        self._size = 0
        """Bytes of the body so far."""

    def send(self, head: bytes, body: bytes, done: Done, timeout: float, most: int) -> None:
        """Send a request; `done` is called exactly once with the response or an error.

        `most` bounds the answer's body in bytes, as it is transferred.
        """
        assert self._done is None
        assert self.transport is not None
        self._done = done
        self._is_fresh = True
        self._is_framed = self._until_close = False
        self._content_type = "application/json"
        self._content_encoding: str | None = None
        self._more = ""
        self._is_odd = self._keeps = False
        self.timeout = timeout
        self.most, self._room, self._size = most, MOST_HEAD, 0
        self.deadline = self._pool.deadline(timeout)
        self.is_stale = False
        self._head, self._message = head, body
        self._written += len(head) + len(body)
        self.transport.write(head + body)

    def fail(self) -> None:
        """Close at once; a request in flight ends with an error."""
        self._finish(BackendLost("given up: the connection was closed here"))
        self.abort()

    def abort(self) -> None:
        """Close at once; a request in flight is dropped silently."""
        self._done = None
        if self._repeated is not None:
            self._repeated.abort()
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the interface without the base class.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take an answer whose headers are cached, or feed the parser."""
        if self._done is None:
            self.abort()  # an unsolicited answer
            return
        is_fresh, self._is_fresh = self._is_fresh, False
        kind = self._pool.kinds.of(data, self._habit) if is_fresh else None
        if kind is not None:
            self._size = len(data) - kind.size
            if self._size > self.most:
                self._refuse()
                return
            self._pool.release(self)
            self._finish(kind.response(data[kind.size :]))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._is_odd = True
            if self._answer is None:
                self._finish(BackendLost(f"not an HTTP response: {error}"))
                self.abort()
                return
        # Only now: data after an answer must not become part of the next request's answer.
        answer, self._answer = self._answer, None
        self._room -= len(data)
        if self._room < 0 or self._size > self.most:
            self._refuse()
        elif answer is not None:
            self._end(data if is_fresh else b"", answer)

    def _refuse(self) -> None:
        """Drop an answer that is too large; nothing of it is kept."""
        self._body.clear()
        what = f"answer is larger than {self.most} bytes"
        if self._size <= self.most:
            what = f"head is larger than {MOST_HEAD} bytes, or its chunks are too many"
        self._finish(BackendTooLarge(f"its {what}"))
        self.abort()

    def _end(self, data: bytes, answer: Response) -> None:
        """Return an answer; `data` is the whole message, if it came in one piece."""
        if self._is_odd:
            self._finish(answer)
            self.abort()
            return
        if self._keeps:
            if data and self._habit.worth_caching:
                self._pool.kinds.keep(data, len(answer.body), ResponseTemplate(answer))
            self._pool.release(self)
        elif self.transport is not None:
            self.transport.close()
        self._finish(answer)

    def eof_received(self) -> None:
        """Let the transport close."""

    def pause_writing(self) -> None:
        """Do nothing: one request is in flight at a time."""

    def resume_writing(self) -> None:
        """Do nothing, likewise."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight, or send it once more."""
        transport, self.transport = self.transport, None
        self._pool.forget(self)
        if self._done is not None and transport is not None and self._may_repeat(transport, exc):
            done, self._done = self._done, None
            left = max(0.0, self.deadline - _monotonic())
            self.deadline = math.inf
            self._repeated = self._pool.connect(self._head, self._message, done, left, self.most)
            return
        if exc is None and self._until_close and self._done is not None:
            # The end of the connection is the end of the body (RFC 9112 §6.3).
            status = self._parser.get_status_code()
            body = b"".join(self._body)
            self._finish(
                Response(status, self._content_type, self._content_encoding, body, self._more)
            )
            return
        self._finish(BackendLost(f"connection closed before the answer: {exc or 'end of file'}"))

    def _may_repeat(self, transport: asyncio.Transport, exc: Exception | None) -> bool:
        """Return True if the request in flight never arrived: the connection was closed before."""
        if not self._is_fresh or self._written == len(self._head) + len(self._message):
            return False  # an answer has begun; or the first request: nothing was idle
        return tcp.is_unreceived(transport.get_extra_info("socket"), self._written, exc)

    # httptools

    def on_message_begin(self) -> None:
        """Detect a second answer to one request, however little of it has arrived."""
        if self._answer is not None:
            self._is_odd = True  # this server cannot be trusted

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the two headers that describe the body."""
        length = len(name)  # most headers differ by length
        if length in (14, 17) and name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True
        if length == 12 and name.lower() == b"content-type":
            self._content_type = value.decode("latin-1")
        elif length == 16 and name.lower() == b"content-encoding":
            self._content_encoding = value.decode("latin-1")
        elif length == 31 and name.lower() == b"inference-header-content-length":
            self._more = f"Inference-Header-Content-Length: {value.decode('latin-1')}\r\n"

    def on_headers_complete(self) -> None:
        """Note whether only the end of the connection ends the body."""
        if self._parser.get_status_code() >= 200:  # otherwise interim: more headers follow
            self._until_close = not self._is_framed
            self._room += 2 * self.most + MOST_HEAD  # includes the framing of a chunked body

    def on_body(self, body: bytes) -> None:
        """Collect the body, up to its bound."""
        self._size += len(body)
        if self._size <= self.most:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Keep the response until the rest of its read is processed."""
        status = self._parser.get_status_code()
        if status < 200:  # an interim response: the final one has headers of its own
            self._content_type, self._content_encoding = "application/json", None
            self._more = ""
            return
        if self._answer is not None:
            return
        body, self._body = self._body, []  # an idle connection keeps no answer
        whole = body[0] if len(body) == 1 else b"".join(body)
        self._keeps = bool(self._parser.should_keep_alive())
        self._answer = Response(
            status, self._content_type, self._content_encoding, whole, self._more
        )

    def on_timeout(self) -> None:
        """Drop the request in flight and its connection."""
        self._finish(BackendTimeout(f"no answer within {self.timeout:g} s"))
        self.abort()

    def _finish(self, result: Response | BackendError) -> None:
        self.deadline = math.inf
        self._message = b""
        if self._done is not None:
            done, self._done = self._done, None
            done(result)


class Pool:
    """The connections to one model server."""

    def __init__(
        self, host: str, port: int, socket: str | None = None, *, most: int = MOST_ANSWER
    ) -> None:
        self.host = host
        self.port = port
        self.socket = socket
        """Path of a Unix socket to connect to instead."""
        self.most = most
        """Largest body accepted, in bytes."""
        self._host_header = f"Host: {host}:{port}\r\n" if socket is None else _LOCALHOST
        self.kinds = KINDS
        self._prefixes: dict[RequestTemplate, bytes] = {}
        self._idle: list[BackendConnection] = []
        self._all: set[BackendConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._ager: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Pool {self.where}: {len(self._all)} open, {len(self._idle)} idle>"

    @property
    def where(self) -> str:
        """Its address, for messages."""
        return self.socket or f"{self.host}:{self.port}"

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
        task.add_done_callback(self._connecting.discard)
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

    async def fetch(self, path: str, *, timeout: float, most: int | None = None) -> Response:
        """Get a path; raise a `BackendError`, also for more than `most` bytes."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def done(result: Response | BackendError) -> None:
            if future.done():
                return
            if isinstance(result, Response):
                future.set_result(result)
            else:
                future.set_exception(result)

        head = f"GET {path} HTTP/1.1\r\n{self._host_header}\r\n".encode("latin-1")
        attempt = self._request(head, b"", done, timeout, self.most if most is None else most)
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
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
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
        except asyncio.CancelledError:
            connecting.done(BackendUnreachable(f"given up while connecting to {self.where}"))
            raise
        except TimeoutError:
            connecting.done(
                BackendSilent(f"cannot connect to {self.where} within {CONNECT_TIMEOUT:g} s")
            )
            return
        except ConnectionError as error:
            connecting.done(BackendUnreachable(f"cannot connect to {self.where}: {reason(error)}"))
            return
        except OSError as error:
            kind = _UNREACHED.get(error.errno or 0, BackendError)
            connecting.done(kind(f"cannot connect to {self.where}: {error}"))
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


def _nobody(_: Response | BackendError) -> None:
    """Ignore an answer that no client waits for."""

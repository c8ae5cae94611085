"""A connection to a model server: a request goes out, its answer comes back, then the next one.

Bytes pass through; a parser in C (llhttp) reads headers that the header cache does not know.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from dispatcher.live.backends import tcp
from dispatcher.live.http.body import Body
from dispatcher.live.http.header_cache import HeaderCache, MissStreak
from dispatcher.live.http.messages import Response, ResponseTemplate
from dispatcher.live.http.pacing import PIECE, WORK, PacedInput
from roma.domain.errors import BackendError, BackendLost, BackendTimeout, BackendTooLarge

MOST_HEAD: Final = 256 * 2**10
"""Limit in bytes of the headers and the interim responses before them: the size of one read."""

BUFFERED: Final = 16 * 2**10
"""Bytes of a request that an idle socket takes at once: Linux's first send buffer (tcp_wmem)."""

Done = Callable[[Response | BackendError], None]


class Attempt(Protocol):
    """A message in flight."""

    def abort(self) -> None:
        """Close at once: the executable is lost, or its model was removed."""


class ConnectionOwner:
    """The pool of a connection. A base class: compiled code calls its methods directly."""

    kinds: HeaderCache[ResponseTemplate]
    keeps: bool
    """True if the server left the connection open after its last answer."""

    def deadline(self, timeout: float) -> float:
        """Return the deadline of a request that is sent now, and start the sweep for it."""
        raise NotImplementedError

    def release(self, connection: "BackendConnection") -> None:
        """Take back a connection that can be used again."""
        raise NotImplementedError

    def forget(self, connection: "BackendConnection") -> None:
        """Remove a closed connection."""
        raise NotImplementedError

    def connect(self, head: bytes, body: bytes, done: Done, timeout: float, most: int) -> Attempt:
        """Send a request on a new connection, as `BackendConnection.send` does."""
        raise NotImplementedError


class BackendConnection:
    """A TCP connection; `send` may be called again after `done` was.

    It implements asyncio's protocol without the base class: a compiled class cannot have that.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_content_encoding",
        "_content_type",
        "_done",
        "_habit",
        "_has_head",
        "_head",
        "_is_framed",
        "_is_fresh",
        "_is_odd",
        "_keeps",
        "_message",
        "_more",
        "_parser",
        "_pool",
        "_reading",
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

    def __init__(self, pool: ConnectionOwner) -> None:
        self._pool = pool
        self._done: Done | None = None
        self._until_close = False
        self._answer: Response | None = None
        self._keeps = False
        """True if the connection can be used again."""
        self._habit = MissStreak()
        self._is_fresh = False
        """True while nothing of the answer has arrived."""
        self._has_head = False
        """True once its headers are complete: what else looks like one is a trailer."""
        self._is_odd = False
        """True if more arrived than was requested."""
        self._body = Body()
        self._reading = PacedInput()
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
        self._has_head = self._is_framed = self._until_close = False
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
        if self._reading.holds(data):
            return
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
            response = kind.response(data[kind.size :])
            if self._has_unsent():
                self._finish(response)
                self.abort()
                return
            self._pool.release(self)
            self._finish(response)
            return
        try:
            data = self._feed(data)
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

    def _feed(self, data: bytes) -> bytes:
        """Feed the parser; return what it was fed. An answer in tiny chunks must hold up nobody."""
        self._reading.work = 0
        for at in range(0, len(data), PIECE):
            transport = self.transport
            if self._reading.work > WORK and self._answer is None and transport is not None:
                self._reading.put_off(data[at:], transport, self.data_received)
                return data[:at]
            self._parser.feed_data(data[at : at + PIECE])
        return data

    def _has_unsent(self) -> bool:
        """Return True if the server answered before it had the whole request."""
        transport = self.transport
        if len(self._message) <= BUFFERED or transport is None:
            return False
        return bool(transport.get_write_buffer_size())

    def _refuse(self) -> None:
        """Drop an answer that is too large; nothing of it is kept."""
        self._body.take()
        what = f"answer is larger than {self.most} bytes"
        if self._size <= self.most:
            what = f"head is larger than {MOST_HEAD} bytes, or its chunks are too many"
        self._finish(BackendTooLarge(f"its {what}"))
        self.abort()

    def _end(self, data: bytes, answer: Response) -> None:
        """Return an answer; `data` is the whole message, if it came in one piece."""
        if self._is_odd or self._has_unsent():
            self._finish(answer)
            self.abort()
            return
        if self._keeps:
            if data and self._habit.worth_caching:
                self._pool.kinds.keep(data, len(answer.body), ResponseTemplate(answer))
            self._pool.release(self)
        elif self.transport is not None:
            self._pool.keeps = False
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
            left = max(0.0, self.deadline - time.monotonic())
            self.deadline = math.inf
            self._repeated = self._pool.connect(self._head, self._message, done, left, self.most)
            return
        if exc is None and self._until_close and self._done is not None:
            # The end of the connection is the end of the body (RFC 9112 §6.3).
            status = self._parser.get_status_code()
            body = self._body.take()
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
        """Keep the headers that describe the body, and when to come again."""
        self._reading.work += 1
        if self._has_head:
            return  # a trailer must not be taken for a header (RFC 9110 §6.5.1)
        length = len(name)  # most headers differ by length
        if length in (14, 17) and name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True
            if length == 17 and value.rstrip(b" ").lower() != b"chunked":
                raise ValueError("unknown Transfer-Encoding")
        if length == 12 and name.lower() == b"content-type":
            self._content_type = value.decode("latin-1")
        elif length == 16 and name.lower() == b"content-encoding":
            coding, before = value.decode("latin-1"), self._content_encoding
            self._content_encoding = coding if before is None else f"{before}, {coding}"
        elif length == 31 and name.lower() == b"inference-header-content-length":
            self._more += f"Inference-Header-Content-Length: {value.decode('latin-1')}\r\n"
        elif length == 11 and name.lower() == b"retry-after":
            self._more += f"Retry-After: {value.decode('latin-1')}\r\n"

    def on_headers_complete(self) -> None:
        """Note whether only the end of the connection ends the body."""
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError("status below 100")
        if status >= 200:  # otherwise interim: more headers follow
            self._has_head = True
            self._until_close = not self._is_framed
            self._room += 2 * self.most + MOST_HEAD  # includes the framing of a chunked body

    def on_body(self, body: bytes) -> None:
        """Collect the body, up to its bound."""
        self._size += len(body)
        self._reading.work += 1
        if self._size <= self.most:
            self._body.add(body)

    def on_message_complete(self) -> None:
        """Keep the response until the rest of its read is processed."""
        status = self._parser.get_status_code()
        if status < 200:  # an interim response: the final one has headers of its own
            self._content_type, self._content_encoding = "application/json", None
            self._more = ""
            self._is_framed = False
            return
        if self._answer is not None:
            return
        body = self._body.take()  # an idle connection keeps no answer
        self._keeps = bool(self._parser.should_keep_alive())
        self._answer = Response(
            status, self._content_type, self._content_encoding, body, self._more
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

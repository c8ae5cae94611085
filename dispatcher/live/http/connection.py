"""A client's connection: bytes in, requests out, answers back in the order of the requests.

A strict C parser (llhttp) reads: input that two servers could understand differently is refused and
ends the connection (RFC 9112 §11.2). One request of a connection is answered at a time; meanwhile
at most the content of one read waits, and nothing more is read. Everything is bounded: headers and
bodies in size, and a client's time for each, by one sweep of the server.
"""

import asyncio
import logging
import math
from collections import deque
from typing import Final, cast

import httptools

from dispatcher.live.http import routes
from dispatcher.live.http.connections import Connections
from dispatcher.live.http.cursor import Cursor
from dispatcher.live.http.handler import ClientConnection, Pending
from dispatcher.live.http.head_pattern import HeadPattern
from dispatcher.live.http.header_cache import HeaderCache, MissStreak
from dispatcher.live.http.messages import Response
from dispatcher.live.http.origins import FOREIGN, MALFORMED, OK
from dispatcher.live.http.request import (
    NAMES,
    ODD,
    OPTION_HEADERS,
    WANTED,
    Head,
    HttpRequest,
    decoded,
)
from dispatcher.live.http.responses import LARGE, written

log: Final = logging.getLogger(__name__)

VERSIONS: Final = frozenset({"1.0", "1.1"})

LINGER: Final = 2.0
"""Seconds during which a client may go on sending data that will not be read."""

_LARGE_HEAD: Final = "request head is larger than"
_RARE: Final = frozenset({"CONNECT", "HEAD"})
"""Methods that need a second check."""

_LINE: Final = "a request line is METHOD SP TARGET SP HTTP/1.1"


class Connection(ClientConnection):
    """A TCP connection; `respond` answers the request that was passed to the server's handler.

    It implements asyncio's protocol without the base class: a compiled class cannot have that.
    """

    __slots__ = (
        "_body",
        "_current",
        "_cursor",
        "_habit",
        "_heads",
        "_held",
        "_is_deaf",
        "_is_heard",
        "_is_odd",
        "_is_paused",
        "_is_reading_head",
        "_is_screened",
        "_is_turning",
        "_is_unread",
        "_last",
        "_last_words",
        "_left",
        "_looked",
        "_parser",
        "_pattern",
        "_pending",
        "_quiet",
        "_request",
        "_server",
        "_size",
        "_target",
        "_transport",
        "_waiting",
    )

    def __init__(self, server: Connections) -> None:
        super().__init__()
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._cursor = Cursor()
        self._transport: asyncio.Transport | None = None
        self._request: HttpRequest | None = None
        """The request that is being read; None between two."""
        self._current: HttpRequest | None = None
        """The request that is being answered."""
        self._pending: Pending | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._last: HttpRequest | None = None
        """The last request that the last read completed."""
        self._body: bytes | bytearray = b""
        self._habit = MissStreak()
        self._pattern = HeadPattern()
        self._heads: HeaderCache[Head] | None = None
        """The server's cache when the pattern was learnt; a new one has new bounds."""
        self._is_deaf = False
        """True if input is discarded until the client closes, or until `due`."""
        self._last_words: Response | None = None
        """The final response, sent once the requests before it are answered."""
        self._is_heard = False
        """True if the last read contained part of a body, or the end of headers."""
        self._quiet = 0
        """Bytes of whole reads that the parser has buffered."""
        self._is_odd = False
        """True if the headers that are being read include one that most requests lack."""
        self._is_paused = False
        """True if nothing more is read until the waiting requests are answered."""
        self._is_reading_head = False
        self._is_screened = False
        """True if the handler has accepted the request that is being read."""
        self._is_turning = False
        """True while `_go_on` runs: requests that it begins may be answered before it returns."""
        self._is_unread = False
        """True if the client leaves answers unread."""
        self._left = 0
        """Bytes that it had left unread at the last check, …"""
        self._looked = 0.0
        """… or the time when they last became fewer, on the server's clock."""
        self._held = 0
        """The part of them that the server counts."""

    def __repr__(self) -> str:
        return f"<Connection of {self.peer}: {self._current or 'idle'}, {len(self._waiting)} wait>"

    @property
    def is_answering(self) -> bool:
        """True if an answer is pending, or not taken by the client yet."""
        if self._current is not None or self.unsent > 0:
            return True
        # Data that TLS has encrypted cannot be seen; it is gone when the connection is.
        return self.is_tls and self._transport is not None and self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def respond(self, response: Response) -> None:
        """Answer the current request, and continue with the next one."""
        request, transport = self._current, self._transport
        self._current = self._pending = None
        if request is None:
            return  # the client is gone
        server = self._server
        server.buffered -= len(request.body)
        if request.grant is not None:
            request.end()
        if transport is None or transport.is_closing():
            return
        size = len(response.body)
        if size > LARGE and server.unsent and not server.make_room(size):
            response = server.handler.error(request, 503, server.no_room(self.peer, size))
        keep_alive = request.head.keep_alive and not response.close and not server.is_draining
        self._write(transport, response, request, keep_alive=keep_alive)
        if not keep_alive:
            self.close()
        elif self._is_paused or self._request is not None or self._is_deaf:
            self._go_on()
        elif not self._is_unread:
            self.due = server.now + self._server.bounds.idle_timeout

    def on_due(self) -> None:
        """Close the connection of a client that takes too long."""
        left = self.unsent
        if left and left < self._left:  # slow, but it reads
            self._see_read(left)
        elif self._is_deaf or self._is_unread or left:
            self.abort()
        elif self._request is None:
            self.close()  # idle
        else:
            bounds = self._server.bounds
            what, limit = "body", bounds.body_timeout
            if self._is_reading_head:
                what, limit = "head", bounds.head_timeout
            self._refuse(408, f"request {what} took longer than {limit:g} s")

    def is_stuck(self) -> bool:
        """Return True if the client has taken nothing of its answer for a while."""
        left = self.unsent
        if left < self._left:
            self._see_read(left)
            return False
        return self._server.now - self._looked >= self._server.patience

    def _see_read(self, left: int) -> None:
        """Record the bytes that the client has left unread, and restart its time."""
        self._left = left
        self._looked = self._server.now
        self.due = self._looked + self._server.bounds.write_timeout
        if self._is_unread:
            self._hold(left)

    def _hold(self, size: int) -> None:
        """Let the server count so many bytes of answers that the client leaves unread."""
        server = self._server
        server.buffered += size - self._held
        server.unsent += size - self._held
        self._held = size

    def close(self) -> None:
        """Close once all written data has been sent."""
        self._is_deaf = True
        self._forget_body()
        self._forget_waiting()
        if self._transport is not None:
            self._left = self.unsent
            unread = self._left or self.is_tls
            limit = self._server.bounds.write_timeout if unread else LINGER
            self.due = self._server.now + limit
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_deaf = True
        self._hold(0)
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, or refuse the client."""
        # uvloop's transports have the interface without the base class.
        self._transport = cast(asyncio.Transport, transport)
        refused = self._server.on_connected(self, self._transport)  # it may be closed already
        self.due = self._server.now + self._server.bounds.head_timeout
        if refused is not None:
            self._refuse(503, refused)

    def data_received(self, data: bytes) -> None:
        """Take a request whose headers are cached, or feed the parser."""
        if self._is_deaf:
            return
        before, self._is_heard = self._request, False
        is_idle = before is None and self._current is None
        is_idle = is_idle and not self._waiting and not self._is_unread
        if is_idle:
            if self._takes(data):
                return
            self._cursor.reset()
        self._feed(data)
        last, self._last = self._last, None
        if is_idle and last is not None:
            self._remember(data, last)
        if before is not None and self._request is before and not self._is_heard:
            # All of it belongs to headers or trailers, which the parser buffers until they are
            # complete.
            self._quiet += len(data)
            if self._quiet > self._server.bounds.head_bytes:
                self._refuse(431, f"{_LARGE_HEAD} {self._server.bounds.head_bytes} bytes")

    def _remember(self, data: bytes, last: HttpRequest) -> None:
        """Keep the headers of a request for the next one that has them, or nearly."""
        head, heads = last.head, self._server.heads
        if self._heads is not heads:
            self._heads = heads
            self._pattern.forget()
        if not head.is_framed:
            return
        if head.will_return and self._habit.worth_caching:
            heads.keep(data, len(last.body), head)
        if self._habit.misses > 1:  # whoever repeats one whole has no need of it
            self._pattern.learn(data, len(last.body), head)

    def _feed(self, data: bytes) -> None:
        """Feed the parser; input that it cannot read ends the connection."""
        self._cursor.read(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # refused already
        except httptools.HttpParserCallbackError:
            log.exception("connection of %s", self.peer)
            self._refuse(500, "Internal error")
        except httptools.HttpParserError as error:
            if not self._is_deaf:
                self._refuse(400, f"Malformed request: {error}")
        self._cursor.keep()

    def _takes(self, data: bytes) -> bool:
        """Take a request that fills a whole read and whose headers are cached; skip the parser."""
        server = self._server
        head: Head | None = None
        if self._heads is server.heads:
            head = self._pattern.of(data, server.bounds.max_body_bytes)
        if head is None:
            head = server.heads.of(data, self._habit)
        if head is None or server.buffered + head.length > server.bounds.buffered_bytes:
            return False
        request = self._request = HttpRequest(self.peer, self.certificate, head)
        self._is_reading_head = False
        refusal = self._screened(request)
        if refusal is not None:
            self._answer_early(refusal)
            return True
        self._request = None
        request.body = data[head.size :]
        server.buffered += head.length
        self._begin(request)
        return True

    def eof_received(self) -> None:
        """Let the transport close: a client that will send nothing more waits for nothing."""

    def pause_writing(self) -> None:
        """Stop: the client leaves answers unread."""
        self._is_unread = True
        self._server.unread[self] = None
        self._see_read(self.unsent)

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        self._is_unread = False
        self._server.unread.pop(self, None)
        self._hold(0)
        self._left = self.unsent
        self.due = (
            self._server.now + self._server.bounds.write_timeout if self._is_deaf else math.inf
        )
        if self._current is None:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what the client no longer waits for."""
        self._transport = None
        self._is_deaf = True
        self._forget_body()
        server = self._server
        self._hold(0)
        server.unread.pop(self, None)
        server.on_disconnected(self)
        self._forget_waiting()
        pending, self._pending = self._pending, None
        if pending is not None:
            # Before its request ends: a running execution holds its caller's grant.
            pending.cancel()
        if self._current is not None:
            server.buffered -= len(self._current.body)
            self._current.end()
            self._current = None

    # httptools

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._is_deaf:
            self._is_reading_head = False
            return
        self._request = HttpRequest(self.peer, self.certificate)
        self._target = self._body = b""
        self._size = self._quiet = 0
        self._is_reading_head = True
        self._is_screened = False
        self._is_odd = False
        if self._current is None:
            self.due = self._server.now + self._server.bounds.head_timeout

    def on_url(self, url: bytes) -> None:
        """Collect the target, which may come in pieces."""
        self._target += url
        self._size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that is in use."""
        self._size += len(name) + len(value)
        if not self._is_reading_head:
            return  # a trailer: not used
        known = NAMES.get(name)
        if known is None:
            known = name.lower()
            if known not in WANTED:
                return
        request = self._request
        assert request is not None
        headers = request.head.headers
        if known in headers:
            value = headers[known] + b"," + value
        elif known in ODD:
            self._is_odd = True
        headers[known] = value

    def on_headers_complete(self) -> None:
        """Refuse a request that is invalid or will not be read, before its body comes."""
        request, parser = self._request, self._parser
        if request is None or self._is_deaf:
            return
        self._is_reading_head = False
        head = request.head
        method: bytes = parser.get_method()
        head.method = decoded(method)
        head.target = decoded(self._target)
        head.keep_alive = parser.should_keep_alive()
        objection, is_large = None, self._size > self._server.bounds.head_bytes
        if not self._cursor.on_request_line(method, self._target):
            objection = 400, f"Malformed request: {_LINE}"
        elif self._is_odd or is_large or not self._is_plain(head):
            objection = self._objection(head) or self._origin_objection(head)
            head.is_usual = head.method != "HEAD" and head.version != "1.0" and not head.cors
        self._size = self._quiet = 0
        self._is_heard = True
        if objection is not None:
            self._refuse(*objection)
            return
        length = head.headers.get(b"content-length")
        if length is not None:
            self._cursor.on_length(int(length))
        head.route = routes.parse(head.method, head.target)
        head.has_options = not OPTION_HEADERS.isdisjoint(head.headers)
        if self._current is None and not self._waiting and not self._is_unread:
            self._let_pass(request)

    def _let_pass(self, request: HttpRequest) -> None:
        """Ask the handler whether the body of a request should be read."""
        refusal = self._screened(request)
        if refusal is not None:
            self._answer_early(refusal)
            return
        self._is_screened = True
        self.due = self._server.now + self._server.bounds.body_timeout
        head = request.head
        # HTTP/1.0 knows no interim responses (RFC 9110 §10.1.1).
        if b"expect" in head.headers and head.version != "1.0" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _screened(self, request: HttpRequest) -> Response | None:
        try:
            return self._server.handler.check_before_body(request)
        except Exception:  # a bug: this client gets an answer, the others do not notice
            log.exception("request %s %s", request.head.method, request.head.target)
            return self._server.handler.error(request, 500, "Internal error")

    def _is_plain(self, head: Head) -> bool:
        """Return True if there is no objection to headers without unusual ones."""
        headers = head.headers
        host, length = headers.get(b"host"), headers.get(b"content-length")
        if host is None or head.method in _RARE or self._server.origins.host(host) != OK:
            return False
        if not head.keep_alive:  # the default of another version than 1.1
            return False
        return length is None or len(length) < self._server.bounds.length_digits

    def _objection(self, head: Head) -> tuple[int, str] | None:  # noqa: PLR0911 - one each
        """Return the status and the reason by which headers are refused, or None."""
        headers, most = head.headers, self._server.bounds.head_bytes
        if self._size > most:
            return 431, f"{_LARGE_HEAD} {most} bytes"
        if b"host" not in headers or self._is_odd or not head.keep_alive:
            head.version = self._parser.get_http_version()  # it formats a new text each time
        if head.version not in VERSIONS:
            # A proxy may have read such a line as HTTP/0.9, which has no headers.
            return 400, f"Malformed request: HTTP/{head.version}: only 1.0 and 1.1 are known"
        host = headers.get(b"host", b"" if head.version == "1.0" else b",")
        if self._server.origins.host(host) == MALFORMED:  # RFC 9112 §3.2
            return 400, "Malformed request: exactly one Host is needed, NAME or NAME:PORT"
        if head.method == "CONNECT" or (b"connection" in headers and self._parser.should_upgrade()):
            # The parser takes no body of these, and treats what follows as another protocol.
            return 501, "Upgrade: only HTTP/1.1 is known"
        coding = headers.get(b"transfer-encoding", b"chunked").lower()
        if coding != b"chunked" or (b"transfer-encoding" in headers and head.version == "1.0"):
            return 501, f"Transfer-Encoding: {decoded(coding)}: only chunked is known"
        if int(headers.get(b"content-length", b"0")) > self._server.bounds.max_body_bytes:
            return 413, f"request body is larger than {self._server.bounds.max_body_bytes} bytes"
        expected = headers.get(b"expect", b"100-continue")
        if expected.lower() != b"100-continue":
            return 417, f"Expect: {decoded(expected)}: only 100-continue is known"
        return None

    def _origin_objection(self, head: Head) -> tuple[int, str] | None:
        """Return the same for a host name that is not ours, or a page of another site."""
        host, origin = head.headers.get(b"host", b""), head.headers.get(b"origin")
        if self._server.origins.host(host) == FOREIGN and head.target not in routes.OPEN:
            bound = "must be an address, localhost or one of gateway.names"
            return 421, f"Host: {decoded(host)}: {bound}"
        if origin is not None:
            lines = self._server.origins.cors(origin)
            if lines is None:
                return 403, f"Origin: {decoded(origin)}: gateway.cors_origins lists those that may"
            head.cors = lines
        return None

    def on_chunk_header(self) -> None:
        """Refuse a chunk that will be too large before it comes."""
        if self._is_deaf or self._request is None:
            return
        size = self._cursor.on_chunk()
        if self._size + size > self._server.bounds.max_body_bytes:
            self._refuse_body()

    def on_body(self, body: bytes) -> None:
        """Collect the body within its bound."""
        if self._is_deaf or self._request is None:
            return
        self._size += len(body)
        self._is_heard = True
        server = self._server
        if self._size > server.bounds.max_body_bytes:
            self._refuse_body()
            return
        server.buffered += len(body)
        if not self._body:
            self._body = body
        else:  # not a list of parts: tiny ones would take many times the bytes that are counted
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        if server.buffered > server.bounds.buffered_bytes and not server.make_room(0):
            # The newest request is refused: the others are further along.
            self._refuse(503, server.no_room(self.peer))

    def on_message_complete(self) -> None:
        """Pass the request to the handler, or let it wait for its turn."""
        request = self._request
        if request is None or self._is_deaf:
            return
        self._request = None
        if self._is_odd and b"transfer-encoding" in request.head.headers:
            self._cursor.on_end_of_chunks()
        body, self._body = self._body, b""
        request.body = bytes(body)  # no copy if it came in one piece
        self._last = request
        if self._current is None and not self._waiting and not self._is_unread:
            if self._is_screened:
                self._begin(request)
            else:  # its headers came while another one was being answered
                self._waiting.append(request)
                self._go_on()
            return
        self._waiting.append(request)
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        self.due = math.inf
        try:
            pending = self._server.handler.handle(request, self)
        except Exception:  # a bug: this client gets an answer, the others do not notice
            log.exception("request %s %s", request.head.method, request.head.target)
            self.respond(self._server.handler.error(request, 500, "Internal error"))
            return
        if self._is_answering_it(request):
            self._pending = pending

    def _is_answering_it(self, request: HttpRequest) -> bool:
        """Check again: a type checker does not know that the handler may have answered already."""
        return self._current is request

    def _go_on(self) -> None:
        """Process the waiting requests; a loop, not a recursion, if each is answered at once."""
        if self._is_turning:
            return
        waiting = self._waiting
        self._is_turning = True
        try:
            while waiting and self._current is None and not self._is_unread:
                request = waiting.popleft()
                refusal = self._screened(request)
                if refusal is None:
                    self._begin(request)
                else:
                    self._current = request
                    self.respond(refusal)
        finally:
            self._is_turning = False
        if waiting or self._current is not None or self._transport is None:
            return
        words, self._last_words = self._last_words, None
        if words is not None:
            self._say_last(words, HttpRequest(self.peer))
        elif not self._is_deaf:
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()
            bounds = self._server.bounds
            idle = bounds.idle_timeout if self._request is None else bounds.body_timeout
            self.due = self._server.now + idle
            if self._request is not None and not self._is_reading_head and not self._is_screened:
                self._let_pass(self._request)

    def _refuse_body(self) -> None:
        most = self._server.bounds.max_body_bytes
        self._refuse(413, f"request body is larger than {most} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error that ends the connection, after the requests before it."""
        request = self._request or HttpRequest(self.peer)
        request.head.has_options = True  # it may have some: its headers are incomplete
        self._answer_early(self._server.handler.error(request, status, message))

    def _answer_early(self, response: Response) -> None:
        """Answer a request that was not read to its end; discard further input."""
        request = self._request or HttpRequest(self.peer)
        self._forget_body()
        self._is_deaf = True
        if self._current is not None or self._waiting:
            self._last_words = response
        else:
            self._say_last(response, request)

    def _say_last(self, response: Response, request: HttpRequest) -> None:
        transport = self._transport
        self.due = self._server.now + LINGER
        if transport is None or transport.is_closing():
            return
        self._write(transport, response, request, keep_alive=False)
        if transport.can_write_eof():
            # If closed at once, the kernel would reset the connection because of unread bytes, and
            # the client would not see the answer (RFC 9112 §9.6).
            if self._is_paused:
                transport.resume_reading()
            transport.write_eof()
        else:
            transport.close()

    def _forget_waiting(self) -> None:
        for request in self._waiting:
            self._server.buffered -= len(request.body)
            request.end()
        self._waiting.clear()

    def _forget_body(self) -> None:
        if self._request is not None:
            self._server.buffered -= len(self._body)
            self._body = b""
            self._request.end()
            self._request = None

    def _write(
        self,
        transport: asyncio.Transport,
        response: Response,
        request: HttpRequest,
        *,
        keep_alive: bool,
    ) -> None:
        kind = response.template
        is_alike = keep_alive and request.head.is_usual and not response.more
        if is_alike and kind is not None and kind.lines:
            transport.write(kind.lines + response.body)
            return
        head, body = written(response, request.head, keep_alive=keep_alive)
        if len(body) <= LARGE:
            transport.write(head + body)
        else:
            transport.write(head)
            # In pieces: TLS would encrypt all at once, and hide it from `unsent`.
            for at in range(0, len(body), LARGE):
                transport.write(memoryview(body)[at : at + LARGE])
            self._see_written()

    def _see_written(self) -> None:
        """Record how much of a large answer is left: `pause_writing` saw a part of it."""
        self._left = self.unsent
        if self._is_unread:
            self._hold(self._left)

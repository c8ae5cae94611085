"""A client's connection: bytes in, requests out, answers back in the order of the requests.

A strict C parser (llhttp) reads: what two servers could understand differently is refused and ends
the connection (RFC 9112 §11.2). One request is answered at a time; meanwhile those of one read
wait. All is bounded: headers and bodies in size, a client's time for each by one sweep.
"""

import asyncio
import logging
import math
from collections import deque
from typing import Final, cast

import httptools

from dispatcher.live.http import head_checks, routes
from dispatcher.live.http import input_states as states
from dispatcher.live.http.answer_writer import AnswerWriter
from dispatcher.live.http.body import Body
from dispatcher.live.http.connections import Connections
from dispatcher.live.http.cursor import Cursor
from dispatcher.live.http.handler import ClientConnection, Pending
from dispatcher.live.http.head_pattern import KnownHeads
from dispatcher.live.http.messages import Response
from dispatcher.live.http.pacing import MOST_WAITING, PIECE, REQUEST, WORK, PacedInput
from dispatcher.live.http.request import NAMES, ODD, OPTION_HEADERS, WANTED, HttpRequest, decoded
from dispatcher.live.http.responses import LARGE

log: Final = logging.getLogger(__name__)

LINGER: Final = 2.0
"""Seconds after which a client that was refused and sends nothing more is closed."""

_ENDED: Final = httptools.HttpRequestParser(object())  # of connections that have ended


class Connection(ClientConnection):
    """A TCP connection; `respond` answers the request that was passed to the server's handler.

    Its input is in one of the states of `input_states.py`. Beside that, a request may be in the
    handler's hands, and reading may be paused until it is answered.

    It implements asyncio's protocol without the base class: a compiled class cannot have that.
    """

    __slots__ = (
        "_body",
        "_current",
        "_cursor",
        "_final",
        "_is_odd",
        "_is_processing",
        "_known",
        "_last",
        "_parser",
        "_pending",
        "_progressed",
        "_quiet",
        "_reading",
        "_request",
        "_server",
        "_size",
        "_state",
        "_target",
        "_waiting",
        "output",
    )

    def __init__(self, server: Connections) -> None:
        super().__init__()
        self._server = server
        self._state = states.IDLE
        self._parser = httptools.HttpRequestParser(self)
        self._cursor = Cursor()
        self.output = AnswerWriter(server)
        self._request: HttpRequest | None = None  # the one that is being read; None between two
        self._current: HttpRequest | None = None  # the one that is being answered
        self._pending: Pending | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._last: HttpRequest | None = None  # the last one that the last read completed
        self._target = b""
        self._body = Body()
        self._size = 0  # bytes of the head, then of the body, that is being read
        self._known = KnownHeads()
        self._final: Response | None = None  # sent once the requests before it are answered
        self._progressed = False  # True if the last read had part of a body, or the end of headers
        self._quiet = 0  # bytes of whole reads that the parser has buffered
        self._is_odd = False  # True if the head that is being read has a header in ODD
        self._reading = PacedInput()
        self._is_processing = False  # what `_process_queue` begins may be answered before its end

    def __repr__(self) -> str:
        return f"<Connection of {self.peer}: {self._current or 'idle'}, {len(self._waiting)} wait>"

    @property
    def is_answering(self) -> bool:
        """True if a body is read or an answer pending, or not taken by the client yet."""
        if self._current is not None or self._state is states.BODY or self.output.unsent > 0:
            return True
        return self.is_tls and self.output.may_hide

    @property
    def _discards(self) -> bool:
        """True if input is discarded."""
        return self._state is states.REFUSED or self._state is states.CLOSED

    @property
    def is_idle(self) -> bool:
        """True between two requests."""
        return self._state is states.IDLE and self._is_free

    @property
    def _is_free(self) -> bool:
        """True if the next request can be answered at once."""
        return self._current is None and not self._waiting and not self.output.is_unread

    def respond(self, response: Response) -> None:
        """Answer the current request, and continue with the next one."""
        request, out, server = self._current, self.output, self._server
        self._current = self._pending = None
        if request is None:
            return  # the client is gone
        server.buffered -= len(request.body)
        if request.grant is not None:
            request.end()
        if out.is_closing:
            return
        size = len(response.body)
        if size > LARGE and server.unsent and not server.make_room(size):
            response = server.handler.error(request, 503, server.no_room(self.peer, size))
        keep_alive = request.head.keep_alive and not response.close and not server.is_draining
        out.write(response, request, keep_alive=keep_alive)
        if not keep_alive:
            self.close()
        elif self._reading.is_paused or self._state is not states.IDLE:
            self._process_queue()
        elif not out.is_unread:
            self.due = server.now + server.bounds.idle_timeout

    def on_due(self) -> None:
        """Close the connection of a client that takes too long."""
        out, bounds = self.output, self._server.bounds
        if out.unsent and out.note_progress():  # slow, but it reads
            self.due = self._server.now + bounds.write_timeout
        elif self._progressed and self._state is states.REFUSED and self._server.now < out.until:
            # It reads the answer once it has sent everything, and not at all if it is cut off.
            self._progressed, self.due = False, self._server.now + LINGER
        elif self._state is states.CLOSED or out.is_unread or out.unsent:
            self.abort()
        elif self._state is states.IDLE or self._state is states.REFUSED:
            self.close()
        elif self._state is states.HEAD:
            self._refuse(408, f"request head took longer than {bounds.head_timeout:g} s")
        else:
            self._refuse(408, f"request body took longer than {bounds.body_timeout:g} s")

    def is_stuck(self) -> bool:
        """Return True if the client has taken nothing of its answer for a while."""
        server, out = self._server, self.output
        if out.note_progress():
            self.due = server.now + server.bounds.write_timeout
            return False
        return server.now - out.last_progress >= server.patience

    def close(self) -> None:
        """Close once all written data has been sent."""
        self._state = states.CLOSE[self._state]
        self._forget()
        if self.output.transport is not None:
            unread = self.output.note_left() or self.is_tls
            limit = self._server.bounds.write_timeout if unread else LINGER
            self.due = self._server.now + limit
            self.output.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._state = states.CLOSE[self._state]
        self.output.drop()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, or refuse the client."""
        # uvloop's transports have the interface without the base class.
        self.output.transport = cast(asyncio.Transport, transport)
        refused = self._server.on_connected(self, self.output.transport)  # it may be closed already
        self.due = self._server.now + self._server.bounds.head_timeout
        if refused is not None:
            self._refuse(503, refused)

    def data_received(self, data: bytes) -> None:
        """Take a request whose headers are known, or feed the parser."""
        if self._discards or self._reading.holds(data):
            self._progressed = True
            return
        before, self._progressed, self._reading.work = self._request, False, 0
        is_idle = self.is_idle
        if is_idle:
            if self._takes(data):
                return
            self._cursor.reset()
        fed = 0
        while fed < len(data):
            transport = self.output.transport
            if self._reading.work > WORK and transport is not None:
                self._reading.put_off(data[fed:], transport, self.data_received)
                break
            self._feed(data[fed : fed + PIECE])
            fed += PIECE
        last, self._last = self._last, None
        if is_idle and last is not None:
            self._known.keep(data, len(last.body), last.head, self._server.heads)
        if before is not None and self._request is before and not self._progressed:
            # All of it belongs to headers or trailers, which the parser keeps until they are whole.
            self._quiet, bounds = self._quiet + min(fed, len(data)), self._server.bounds
            if self._quiet > bounds.head_bytes:
                self._refuse(*bounds.large_head())

    def _feed(self, data: bytes) -> None:
        """Feed the parser; input that it cannot read ends the connection."""
        self._cursor.read(data)
        while data:
            fed, data = data, b""
            try:
                self._parser.feed_data(fed)
            except httptools.HttpParserUpgrade:
                data = self._cursor.repeated()
            except httptools.HttpParserCallbackError:
                log.exception("connection of %s", self.peer)
                self._refuse(500, "Internal error")
            except httptools.HttpParserError as error:
                self._refuse(400, f"Malformed request: {error}")
        self._cursor.keep()

    def _takes(self, data: bytes) -> bool:
        """Take a request that fills a whole read and whose headers are known; skip the parser."""
        server = self._server
        head = self._known.of(data, server.heads, server.bounds.max_body_bytes)
        if head is None or server.buffered + head.length > server.bounds.buffered_bytes:
            return False
        request = HttpRequest(self.peer, self.certificate, head)
        refusal = self._checked(request)
        if refusal is not None:  # it was read to its end: the connection can stay open
            self._current = request
            self.respond(refusal)
            return True
        request.body = data[head.size :]
        server.buffered += head.length
        self._begin(request)
        return True

    def eof_received(self) -> None:
        """Let the transport close: a client that will send nothing more waits for nothing."""

    def pause_writing(self) -> None:
        """Stop: the client leaves answers unread."""
        self.output.pause(self)
        self.due = self._server.now + self._server.bounds.write_timeout

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        self.output.resume(self)
        now, bounds = self._server.now, self._server.bounds
        self.due = now + bounds.write_timeout if self._discards else math.inf
        if self._current is None:
            self._process_queue()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what the client no longer waits for."""
        self._state, self.output.transport = states.CLOSE[self._state], None
        self._parser = _ENDED  # ours holds our methods: a cycle, collected rarely
        self._forget()
        server = self._server
        self.output.resume(self)
        server.on_disconnected(self)
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
        if self._discards:
            return
        self._state = states.BEGIN[self._state]
        self._request = HttpRequest(self.peer, self.certificate)
        self._target, self._size, self._quiet, self._is_odd = b"", 0, 0, False
        if self._current is None:
            self.due = self._server.now + self._server.bounds.head_timeout

    def on_url(self, url: bytes) -> None:
        """Collect the target, which may come in pieces."""
        self._target += url
        self._size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that is in use."""
        self._size += len(name) + len(value) + 4  # the line around them
        self._reading.work += 1
        request = self._request
        if self._state is not states.HEAD or request is None:
            return  # a trailer: not used
        known = NAMES.get(name)
        if known is None:
            known = name.lower()
            if known not in WANTED:
                return
        headers = request.head.headers
        if known in headers:
            value = headers[known] + b"," + value
        elif known in ODD:
            self._is_odd = True
        headers[known] = value

    def on_headers_complete(self) -> None:
        """Refuse a request that is invalid or will not be read, before its body comes."""
        request, parser, server = self._request, self._parser, self._server
        if request is None or self._state is not states.HEAD:
            return
        head, method = request.head, parser.get_method()
        head.method, head.target = decoded(method), routes.origin_form(decoded(self._target))
        head.keep_alive = parser.should_keep_alive()
        objection: head_checks.Objection | None = head_checks.BAD_LINE
        if self._cursor.on_request_line(method, self._target):
            objection = head_checks.objection(head, parser, server, self._size, is_odd=self._is_odd)
        self._size, self._quiet, self._progressed = 0, 0, True
        if objection == head_checks.UPGRADE and self._cursor.repeat():
            self._request, self._state = None, states.REPEAT[self._state]
            return
        if objection is not None:
            self._refuse(*objection)
            return
        self._cursor.on_length(head.headers.get(b"content-length"))
        head.route = routes.parse(head.method, head.target)
        head.has_options = not OPTION_HEADERS.isdisjoint(head.headers)
        if self._is_free:
            self._accept(request)
        elif len(self._waiting) >= MOST_WAITING:
            self._refuse(503, f"{MOST_WAITING} requests wait on this connection: limit reached")
        else:
            self._state = states.QUEUE[self._state]

    def _accept(self, request: HttpRequest) -> None:
        """Ask the handler whether the body of a request should be read."""
        refusal = self._checked(request)
        if refusal is not None:
            self._answer_early(refusal)
            return
        self._state = states.ACCEPT[self._state]
        self.due = self._server.now + self._server.bounds.body_timeout
        head, transport = request.head, self.output.transport
        # HTTP/1.0 knows no interim responses (RFC 9110 §10.1.1).
        if b"expect" in head.headers and head.version != "1.0" and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _checked(self, request: HttpRequest) -> Response | None:
        try:
            return self._server.handler.check_before_body(request)
        except Exception:  # a bug
            return self._internal_error(request)

    def _internal_error(self, request: HttpRequest) -> Response:
        """Answer a bug: this client gets an answer, the others do not notice."""
        log.exception("request %s %s", request.head.method, request.head.target)
        return self._server.handler.error(request, 500, "Internal error")

    def on_chunk_header(self) -> None:
        """Refuse a chunk that will be too large before it comes."""
        if self._discards or self._request is None:
            return
        self._reading.work += 1
        if self._size + self._cursor.on_chunk() > self._server.bounds.max_body_bytes:
            self._refuse(*self._server.bounds.large_body())

    def on_body(self, body: bytes) -> None:
        """Collect the body within its bound."""
        if self._discards or self._request is None:
            return
        self._size += len(body)
        server, self._progressed = self._server, True
        if self._size > server.bounds.max_body_bytes:
            self._refuse(*self._server.bounds.large_body())
            return
        server.buffered += len(body)
        self._body.add(body)
        if server.buffered > server.bounds.buffered_bytes and not server.make_room(0):
            # The newest request is refused: the others are further along.
            self._refuse(503, server.no_room(self.peer))

    def on_message_complete(self) -> None:
        """Pass the request to the handler, or let it wait for its turn."""
        request, is_accepted = self._request, self._state is states.BODY
        if request is None or self._discards:
            return
        self._state, self._request = states.COMPLETE[self._state], None
        self._reading.work += REQUEST
        if self._is_odd and b"transfer-encoding" in request.head.headers:
            self._cursor.on_end_of_chunks()
        request.body = self._body.take()
        self._last = request
        if is_accepted:  # checked: not once more, though an answer became unread meanwhile
            self._begin(request)
        elif self._is_free:  # its headers came while another one was being answered
            self._waiting.append(request)
            self._process_queue()
        else:
            self._waiting.append(request)
            self._reading.pause(self.output.transport)

    def _begin(self, request: HttpRequest) -> None:
        self._current, self.due = request, math.inf
        try:
            pending = self._server.handler.handle(request, self)
        except Exception:  # a bug
            self.respond(self._internal_error(request))
            return
        if self._is_answering_it(request):
            self._pending = pending

    def _is_answering_it(self, request: HttpRequest) -> bool:
        """Check again: compiled code takes the handler not to have answered in the meantime."""
        return self._current is request

    def _process_queue(self) -> None:
        """Process the waiting requests; a loop, not a recursion, if each is answered at once."""
        if self._is_processing:
            return
        waiting, left, self._is_processing = self._waiting, WORK // REQUEST, True
        try:
            while waiting and left and self._current is None and not self.output.is_unread:
                left -= 1
                request = waiting.popleft()
                refusal = self._checked(request)
                if refusal is None:
                    self._begin(request)
                else:
                    self._current = request
                    self.respond(refusal)
        finally:
            self._is_processing = False
        if waiting and not left and self._current is None:
            asyncio.get_running_loop().call_soon(self._process_queue)
        if waiting or self._current is not None or self.output.transport is None:
            return
        final, self._final = self._final, None
        if final is not None:
            self._send_final(final, HttpRequest(self.peer))
        elif not self._discards and not self.output.is_unread:
            self._read_on(self.output.transport)

    def _read_on(self, transport: asyncio.Transport) -> None:
        """Read the next request, or the rest of it: those before it are answered."""
        self._reading.resume(transport)
        bounds, request, is_head = self._server.bounds, self._request, self._state is states.HEAD
        timeout = bounds.head_timeout if is_head else bounds.body_timeout
        self.due = self._server.now + (bounds.idle_timeout if request is None else timeout)
        if request is not None and self._state is states.QUEUED:
            self._accept(request)

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error that ends the connection, after the requests before it."""
        request = self._request or HttpRequest(self.peer)
        request.head.has_options = True  # it may have some: its headers are incomplete
        self._answer_early(self._server.handler.error(request, status, message))

    def _answer_early(self, response: Response) -> None:
        """Answer a request that was not read to its end; discard further input."""
        if self._discards:
            return  # one final response is enough
        self._state = states.REFUSE[self._state]
        request = self._request or HttpRequest(self.peer)
        self._forget_body()
        if self._current is not None or self._waiting:
            self._final = response
        else:
            self._send_final(response, request)

    def _send_final(self, response: Response, request: HttpRequest) -> None:
        self.due, self._progressed = self._server.now + LINGER, False
        self.output.end(response, request, is_paused=self._reading.is_paused)

    def _forget(self) -> None:
        self._forget_body()
        for request in self._waiting:
            self._server.buffered -= len(request.body)
            request.end()
        self._waiting.clear()

    def _forget_body(self) -> None:
        if self._request is not None:
            self._server.buffered -= len(self._body.take())
            self._request.end()
            self._request = None

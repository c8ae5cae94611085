"""Answers to one client: written, and counted by the server while the client leaves them unread."""

import asyncio

from dispatcher.live.http.connections import Connections
from dispatcher.live.http.handler import ClientConnection
from dispatcher.live.http.messages import Response
from dispatcher.live.http.request import HttpRequest
from dispatcher.live.http.responses import LARGE, with_more, written


class AnswerWriter:
    """The written half of a connection; `transport` is None before and after it is open."""

    __slots__ = (
        "_counted",
        "_hidden_until",
        "_left",
        "_server",
        "is_unread",
        "last_progress",
        "transport",
        "until",
    )

    def __init__(self, server: Connections) -> None:
        self._server = server
        self.transport: asyncio.Transport | None = None
        self.is_unread = False
        """True if the client leaves answers unread."""
        self._left = 0
        """Bytes that it had left unread at the last check, …"""
        self.last_progress = 0.0
        """… or the time when they last became fewer, on the server's clock."""
        self.until = 0.0
        """Time until which a client may go on sending after its last answer."""
        self._counted = 0
        """The part of them that the server counts."""
        self._hidden_until = 0.0
        """Time until which TLS may hold encrypted bytes of answers."""

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def may_hide(self) -> bool:
        """True if the connection is closing and TLS may hold bytes that `unsent` does not count.

        It may if some were unsent within the last `write_timeout`: it encrypts them all at once.
        """
        is_open = self.transport is not None
        return is_open and self.is_closing and self._server.now < self._hidden_until

    @property
    def is_closing(self) -> bool:
        """True if nothing can be written any more."""
        return self.transport is None or self.transport.is_closing()

    def write(self, response: Response, request: HttpRequest, *, keep_alive: bool) -> None:
        """Write the answer to a request; the transport must not be closing."""
        transport, kind = self.transport, response.template
        assert transport is not None
        if keep_alive and request.head.is_usual and kind is not None and kind.lines:
            lines, more = kind.lines, response.more
            lines = with_more(lines, more) if more else lines
            transport.write(b"".join((lines, self._server.date, response.body)))
            return
        date = self._server.date
        head, body = written(response, request.head, date=date, keep_alive=keep_alive)
        if len(body) <= LARGE:
            transport.write(head + body)
            return
        transport.write(head)
        # In pieces: TLS would encrypt all at once, and hide it from `unsent`.
        for at in range(0, len(body), LARGE):
            transport.write(memoryview(body)[at : at + LARGE])
        self.note_left()  # `pause` saw a part of it
        if self.is_unread:
            self._count(self._left)

    def end(self, response: Response, request: HttpRequest, *, is_paused: bool) -> None:
        """Write the last answer, and let the client close."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.until = self._server.now + self._server.bounds.body_timeout
        self.write(response, request, keep_alive=False)
        # If closed at once, the kernel would reset the connection because of unread bytes, and the
        # client would not see the answer (RFC 9112 §9.6).
        if is_paused:
            transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()

    def note_left(self) -> int:
        """Note how many bytes are left, and return that."""
        self._left = self.unsent
        if self._left:
            self._note_hidden()
        return self._left

    def note_progress(self) -> bool:
        """Return True if the client has taken bytes since the last check; its time begins anew."""
        left = self.unsent
        if left >= self._left:
            return False
        self._move(left)
        return True

    def pause(self, connection: ClientConnection) -> None:
        """Count what the client leaves unread."""
        self.is_unread = True
        self._server.unread[connection] = None
        self._move(self.unsent)

    def resume(self, connection: ClientConnection) -> None:
        """Count it no longer: the client has read, or is gone."""
        self.is_unread = False
        self._server.unread.pop(connection, None)
        self._count(0)
        self._note_hidden()
        self.note_left()

    def drop(self) -> None:
        """Close at once; what is unread counts no longer."""
        self._count(0)
        if self.transport is not None:
            self.transport.abort()

    def _note_hidden(self) -> None:
        self._hidden_until = self._server.now + self._server.bounds.write_timeout

    def _move(self, left: int) -> None:
        self._left, self.last_progress = left, self._server.now
        self._note_hidden()
        if self.is_unread:
            self._count(left)

    def _count(self, size: int) -> None:
        server, change = self._server, size - self._counted
        server.buffered += change
        server.unsent += change
        self._counted = size

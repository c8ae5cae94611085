"""Pace of a connection's input: no read while requests wait, and a bounded part of each a turn.

A read has up to 256 kB, and one that was full is followed by the next at once. If it is full of
chunks of one byte, or of requests, that takes seconds during which no other connection is served.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PIECE: Final = 8 * 2**10
"""Bytes that are parsed before the next look at the work."""

WORK: Final = 1024
"""Header lines and chunks of one read that are parsed before the event loop turns; a piece more."""

REQUEST: Final = 32
"""The work of a whole request."""

MOST_WAITING: Final = 256
"""Requests of a connection that wait for those before them: one takes 0.5 kB, and more than twenty
times as much as its bytes."""


class PacedInput:
    """The reading side of a transport. `work` is set to 0 at the beginning of a read."""

    __slots__ = ("is_paused", "rest", "work")

    def __init__(self) -> None:
        self.is_paused = False
        """True if nothing more is read until the waiting requests are answered."""
        self.rest = b""
        """Input that was read, and is parsed in the next turn of the event loop."""
        self.work = 0

    def holds(self, data: bytes) -> bool:
        """Return True if input must wait for what was read before it; keep it then."""
        if self.rest:
            self.rest += data
        return bool(self.rest)

    def pause(self, transport: asyncio.Transport | None) -> None:
        """Read nothing more until `resume`."""
        if transport is not None and not self.is_paused:
            self.is_paused = True
            transport.pause_reading()

    def resume(self, transport: asyncio.Transport) -> None:
        """Read again, unless something is put off."""
        if self.is_paused:
            self.is_paused = False
            if not self.rest:
                transport.resume_reading()

    def put_off(
        self, rest: bytes, transport: asyncio.Transport, receive: Callable[[bytes], None]
    ) -> None:
        """Pass the rest of a read to `receive` once the event loop has served the others."""

        def go_on() -> None:
            put_off, self.rest = self.rest, b""
            receive(put_off)
            if not self.rest and not self.is_paused:
                transport.resume_reading()

        self.rest = rest
        transport.pause_reading()
        asyncio.get_running_loop().call_soon(go_on)

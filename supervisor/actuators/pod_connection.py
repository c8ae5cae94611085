"""A keep-alive connection on which a model server is asked the same question, again and again.

Asking 200 pods once per second through the aiohttp client was half of what their supervisor cost
(`bench kubernetes`). There is no timer per question: the next one notices that an answer is late.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from httptools import HttpParserError, HttpResponseParser

from roma.domain.addresses import authority
from roma.telemetry.reachability import reason

MOST_BYTES: Final = 16 * 1024
"""Most bytes of an answer, its head among them."""


class PodConnection(asyncio.Protocol):
    """A connection to a model server, opened by the first question, until either side closes it.

    It asks GET `path`, one question at a time. `answered` is called with each status and body,
    `failed` with the reason for no answer, after which the connection is closed.
    """

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        answered: Callable[[int, bytes], None],
        failed: Callable[[str], None],
    ) -> None:
        host, port = self.address = address
        self._question = f"GET {path} HTTP/1.1\r\nHost: {authority(host, port)}\r\n\r\n".encode()
        self._answered = answered
        self._failed = failed
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._arrived = 0
        self._body = bytearray()
        self._lost = asyncio.Event()
        self.is_waiting = False
        """True while an answer is awaited."""
        self.asked_at = 0.0
        """Time of the last question on the loop's clock."""
        self.is_closed = False

    def ask(self) -> None:
        """Ask the question; none may be waiting for its answer."""
        assert not self.is_waiting
        self.is_waiting = True
        self.asked_at = asyncio.get_running_loop().time()
        if self._transport is not None:
            self._send(self._transport)
        else:
            self._connecting = asyncio.create_task(self._connect())

    def close(self) -> None:
        """Close it without a report."""
        self.is_closed, self.is_waiting = True, False
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return when its socket is closed, after `close`."""
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._transport is not None:
            await self._lost.wait()

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, *self.address)
        except (OSError, ValueError) as error:  # ValueError: no address
            self._fail(reason(error))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first question."""
        self._transport = cast("asyncio.Transport", transport)
        if self.is_closed:
            transport.close()
        else:
            self._send(self._transport)

    def _send(self, transport: asyncio.Transport) -> None:
        self._parser, self._arrived = HttpResponseParser(self), 0
        self._body.clear()
        transport.write(self._question)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        self._arrived += len(data)
        if self._parser is None or not self.is_waiting:
            self.close()  # an answer without a question
        elif self._arrived > MOST_BYTES:
            self._fail(f"an answer of more than {MOST_BYTES} bytes")
        else:
            try:
                self._parser.feed_data(data)
            except HttpParserError:
                self._fail("an answer that is no HTTP")

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Report the answer."""
        assert self._parser is not None
        if not self.is_waiting:
            return  # a second answer in the same bytes
        self.is_waiting = False
        if not self._parser.should_keep_alive():
            self.close()
        self._answered(self._parser.get_status_code(), bytes(self._body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it if an answer is awaited."""
        if self.is_waiting:
            self._fail("connection closed" if exc is None else reason(exc))
        self.is_closed = True
        self._lost.set()

    def _fail(self, why: str) -> None:
        self.close()
        self._failed(why)

"""`python -m bench.bare PORT BACKEND`: the cost of passing bytes on alone, with the same parts.

No queue, no scheduling, no statistics, no deadline, no limit, no error: a lower bound for a gateway
of these parts. It calls one path and answers 200, whatever arrives.
"""

import asyncio
import sys
from typing import Any

import httptools
import uvloop

from bench.proxies import TARGET

ASK = f"POST {TARGET} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LENGTH = b"%sContent-Length: %d\r\n\r\n%s"


class _Side(asyncio.Protocol):
    """A connection, whose parser keeps each message's body."""

    transport: Any
    parser: Any
    body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body = body


class _Behind(_Side):
    """A connection to the backend."""

    front: "_Front"

    def __init__(self, idle: list["_Behind"]) -> None:
        self.idle = idle
        self.parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.idle:  # the backend closes long-idle connections
            self.idle.remove(self)

    def on_message_complete(self) -> None:
        self.idle.append(self)
        self.front.transport.write(LENGTH % (ANSWER, len(self.body), self.body))


class _Front(_Side):
    """A client's connection."""

    def __init__(self, idle: list[_Behind], backend: int) -> None:
        self.idle, self.backend = idle, backend
        self.parser = httptools.HttpRequestParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parse a header, as the gateway does."""

    def on_message_complete(self) -> None:
        if self.idle:
            self.ask(self.idle.pop())
        else:
            self.connecting = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        made = await loop.create_connection(lambda: _Behind(self.idle), "127.0.0.1", self.backend)
        self.ask(made[1])

    def ask(self, behind: _Behind) -> None:
        behind.front = self
        behind.transport.write(LENGTH % (ASK, len(self.body), self.body))


async def main(port: int, backend: int) -> None:
    """Serve until terminated."""
    idle: list[_Behind] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Front(idle, backend), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))

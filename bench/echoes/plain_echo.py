"""A backend for a gateway: `plain_echo.py PORT`, or a Unix socket's path instead.

It answers TensorFlow Serving's predict and status calls, and does in Python what the other
systems' model does: reads the JSON and writes it.
"""

import asyncio
import sys
from typing import Any

import orjson
import uvloop

STATUS = b'{"model_version_status":[{"version":"1","state":"AVAILABLE"}]}'


class Requests(asyncio.Protocol):
    """A connection with requests, one at a time, as a gateway's pool sends them."""

    data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Handle a request once it is whole."""
        data = self.data + data
        head, blank, body = data.partition(b"\r\n\r\n")
        start = head.lower().find(b"content-length:")
        length = int(head[start + 15 :].split(None, 1)[0]) if start >= 0 else 0
        if not blank or len(body) < length:
            self.data = data
            return
        self.data = b""
        self.requested(head, body)

    def requested(self, head: bytes, body: bytes) -> None:
        """Answer a request, here by what it holds."""
        if head.startswith(b"GET"):
            self.answer(STATUS)
        else:
            self.answer(orjson.dumps({"predictions": orjson.loads(body)["instances"]}))

    def answer(self, body: bytes) -> None:
        """Answer now."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


async def main(place: str) -> None:
    """Serve on a port or a Unix socket until the program is ended."""
    loop = asyncio.get_running_loop()
    if place.isdigit():
        server = await loop.create_server(Requests, "127.0.0.1", int(place))
    else:
        server = await loop.create_unix_server(Requests, place)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))

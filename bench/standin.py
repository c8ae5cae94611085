"""A model server that is `slots` requests wide and takes `service` seconds for each.

`python -m bench.standin PORT SLOTS SERVICE` answers TensorFlow Serving's predict and status calls.
Work has a schedule of its own: a late timer delays one answer, and loses no capacity.
"""

import asyncio
import heapq
import sys

ANSWER = b'{"predictions": [[0.5]]}'
STATUS = b'{"model_version_status":[{"version":"1","state":"AVAILABLE"}]}'


class Server:
    """When each of its slots is free, on the loop's clock."""

    def __init__(self, slots: int, service: float) -> None:
        self.service = service
        self.free = [0.0] * slots

    def ends(self, now: float) -> float:
        """Take a request; return when it will be answered."""
        end = max(now, self.free[0]) + self.service
        heapq.heapreplace(self.free, end)
        return end


class Connection(asyncio.Protocol):
    """One request at a time, as a gateway's pool sends them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a whole request, a predict when its time has come."""
        self.data += data
        head, blank, body = self.data.partition(b"\r\n\r\n")
        start = head.lower().find(b"content-length:")
        length = int(head[start + 15 :].split(None, 1)[0]) if start >= 0 else 0
        if not blank or len(body) < length:
            return
        self.data = b""
        if head.startswith(b"GET"):
            self.answer(STATUS)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(self.server.ends(loop.time()), self.answer, ANSWER)

    def answer(self, body: bytes) -> None:
        """Answer now."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


async def main(port: int, slots: int, service: float) -> None:
    """Serve until the program is ended."""
    server = Server(slots, service)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Connection(server), "127.0.0.1", port, backlog=4096
    )
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

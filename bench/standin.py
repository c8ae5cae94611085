"""A stand-in for a model server: `slots` requests wide, `service` seconds for each.

`python -m bench.standin PORT SLOTS SERVICE` answers TensorFlow Serving's predict and status calls,
and `GET /most`: the most requests that it has had at once, including those whose senders gave up.
Work has a schedule of its own: a late timer delays one answer, and loses no capacity.
"""

import asyncio
import contextlib
import heapq
import sys
import urllib.request
from collections.abc import Iterator

from bench.builds import environment
from bench.echoes.plain_echo import STATUS, Requests
from bench.programs import program, until_ready
from roma.tools.demo.ports import free_ports

ANSWER = b'{"predictions": [[0.5]]}'


class Server:
    """Times at which its slots are free, on the loop's clock, and the number of its requests."""

    def __init__(self, slots: int, service: float) -> None:
        self.service = service
        self.free = [0.0] * slots
        self.running = self.most = 0

    def begin(self, now: float) -> float:
        """Take a request; return when it will be answered."""
        self.running += 1
        self.most = max(self.most, self.running)
        end = max(now, self.free[0]) + self.service
        heapq.heapreplace(self.free, end)
        return end

    def end(self) -> None:
        """Count a request out: at its end, even if its sender gave up."""
        self.running -= 1


class Connection(Requests):
    """A connection of the server: a predict is answered when its time has come."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def requested(self, head: bytes, body: bytes) -> None:
        """Answer now, or when a slot has served it."""
        if head.startswith(b"GET /most "):
            self.answer(b"%d" % self.server.most)
        elif head.startswith(b"GET"):
            self.answer(STATUS)
        else:
            loop = asyncio.get_running_loop()
            loop.call_at(self.server.begin(loop.time()), self.predicted)

    def predicted(self) -> None:
        """Answer a predict."""
        self.server.end()
        self.answer(ANSWER)


@contextlib.contextmanager
def running(slots: int, service: float, core: int) -> Iterator[int]:
    """Run one in a process of its own, on one core; yield its port."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "bench.standin", f"{port}", f"{slots}", f"{service}"]
    with program(argv, core, environment("interpreted")):
        until_ready(f"http://127.0.0.1:{port}/v1/models/m")
        yield port


def most(port: int) -> int:
    """Return the most requests that the one at this port has had at once."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/most", timeout=5) as answer:
        return int(answer.read())


async def main(port: int, slots: int, service: float) -> None:
    """Serve until the program is terminated."""
    server = Server(slots, service)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Connection(server), "127.0.0.1", port, backlog=4096
    )
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

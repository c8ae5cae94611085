"""Hostile traffic: clients that break every rule of HTTP, or keep to all and give nothing back.

They come from an address of their own, as the limit of connections per address has it, and those of
their requests that are well-formed ask for a model of their own: what they get is theirs alone.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from itertools import cycle

ADDRESS = "127.0.0.2"
MODEL = "h"
TIMEOUTS = {"head_timeout": 2.0, "body_timeout": 3.0, "write_timeout": 3.0}
"""Limits of the gateway, in seconds, that a run has time to reach."""

PATIENCE = 15.0
"""Seconds after which a client gives up to whom nothing happens: a fault of the gateway."""

AT_ONCE = 200
"""Clients that are busy at once, at most."""

FILL = 5000
"""Paths that are asked for once, at first: more than the gateway remembers."""

LATER = 1_000_000
"""Number of the first: a version that no later client looks up."""

FEW = 4
"""Of them by one client: the gateway remembers no heads of clients whose every head is new."""

POST = f"POST /v1/models/{MODEL}:predict HTTP/1.1\r\nHost: localhost\r\n".encode()
FIT = b"Content-Length: 2\r\n\r\n{}"


class Hostile:
    """Clients at a steady rate, one kind after the other; `ends` counts what came of each kind.

    For the first `burst` seconds they are three times as many: what memory many of them at once
    take, and a heap keeps, is taken early.
    """

    def __init__(self, port, rate, burst=0.0):
        self._port, self._rate, self._burst = port, rate, burst
        self._number = 0
        self.ends = Counter()

    @property
    def sent(self):
        """The number of clients that have ended."""
        return sum(self.ends.values())

    async def run(self):
        """Send until cancelled."""
        clock, kinds, busy = asyncio.get_running_loop().time, cycle(KINDS.items()), set()
        try:
            await self.fill()
            due = clock()
            steady = due + self._burst
            while True:
                await asyncio.sleep(due - clock())
                due += 1 / self._rate / (3 if due < steady else 1)
                if len(busy) < AT_ONCE:
                    task = asyncio.create_task(self._one(*next(kinds)))
                    busy.add(task)
                    task.add_done_callback(busy.discard)
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    async def fill(self):
        """Look up as many versions as are remembered: what memory that takes is taken early."""
        for first in range(LATER, LATER + FILL, FEW):
            async with self._connected() as streams:
                for number in range(first, first + FEW):
                    assert await look_up(*streams, number) == 200

    async def _one(self, name, kind):
        self._number += 1
        try:
            async with asyncio.timeout(PATIENCE), self._connected() as streams:
                end = await kind(*streams, self._number)
        except TimeoutError:
            end = "nothing"
        except (OSError, asyncio.IncompleteReadError):
            end = "closed"
        self.ends[name, end] += 1

    @contextlib.asynccontextmanager
    async def _connected(self):
        streams = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(ADDRESS, 0), limit=1 << 16
        )
        try:
            yield streams
        finally:
            streams[1].transport.abort()


async def _status(reader):
    """Read one answer; return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    return int(head.split()[1])


MALFORMED = (
    POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Content-Length: +2\r\n\r\n{}",
    POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    POST + b"Nul: a\x00b\r\n" + FIT,
    POST + b"Folded: a\r\n b\r\n" + FIT,
    POST.replace(b"1.1", b"9.9") + FIT,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 512,  # TLS at a plain port
    b"\xff\xfe\r\n\r\n",
)


async def malformed(reader, writer, number):
    writer.write(MALFORMED[number % len(MALFORMED)])
    return await _status(reader)


async def long_head(reader, writer, number):
    writer.write(POST + b"X-Long: " + b"x" * 65_536 + b"\r\n" + FIT)
    return await _status(reader)


async def slow_head(reader, writer, number):
    return await _drip(reader, writer, POST)


async def slow_body(reader, writer, number):
    writer.write(POST + b"Content-Length: 1000\r\n\r\n")
    return await _drip(reader, writer, b"[" * 1000)


async def _drip(reader, writer, data):
    """Send a byte now and then until there is an answer."""
    answer = asyncio.create_task(_status(reader))
    try:
        for byte in data:
            writer.write(bytes([byte]))
            if (await asyncio.wait([answer], timeout=0.3))[0]:
                break
        return await answer
    finally:
        answer.cancel()


async def silent(reader, writer, number):
    return "closed" if await reader.read() == b"" else "answered"


async def oversized(reader, writer, number):
    writer.write(POST + b"Content-Length: 1000000000000\r\n\r\n" + b"x" * 10_000)
    return await _status(reader)


async def tiny_chunks(reader, writer, number):
    writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
    return await _status(reader)


async def deep(reader, writer, number):
    writer.write(POST + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000)
    return await _status(reader)


async def foreign(reader, writer, number):
    paths = ("/../../etc/passwd", "/v1/models/%2e%2e:predict", f"/v1/models/n{number}", "/v9", "*")
    writer.write(f"GET {paths[number % len(paths)]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return await _status(reader)


async def look_up(reader, writer, number):
    path = f"/v1/models/{MODEL}/versions/{number}/metadata"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return await _status(reader)


async def early_reset(reader, writer, number):
    writer.write(POST + FIT)
    await asyncio.sleep(0)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    return "reset"


async def half_closed(reader, writer, number):
    writer.write(POST + b"Content-Length: 10\r\n\r\n{")
    writer.write_eof()
    return "closed" if await reader.read() == b"" else "answered"


async def never_reads(reader, writer, number):
    writer.transport.pause_reading()
    try:
        while True:  # until it is closed: more of them than any buffer holds the answers of
            writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            await asyncio.wait_for(writer.drain(), 0.5)
            await asyncio.sleep(0.1)
    except TimeoutError:
        await writer.wait_closed()
    return "closed"


KINDS = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        malformed,
        long_head,
        slow_head,
        slow_body,
        silent,
        oversized,
        tiny_chunks,
        deep,
        foreign,
        look_up,
        early_reset,
        half_closed,
        never_reads,
    )
}

_COMPUTED = frozenset({200, 429, 503, 504})
"""As the hostile model's stand-in and its queue have it."""

EXPECTED = {
    "malformed": {400, 501, 505},
    "long head": {431},
    "slow head": {408},
    "slow body": {408},
    "silent": {"closed"},
    "oversized": {413},
    "tiny chunks": _COMPUTED,
    "deep": _COMPUTED,
    "foreign": {400, 404},
    "look up": {200},
    "early reset": {"reset"},
    "half closed": {"closed", "answered"},
    "never reads": {"closed"},
}
"""Ends that each kind may have; "closed" of any: a reset overtakes an answer that was sent."""


def surprises(ends):
    """Return what came otherwise, as `(kind, end): count`."""
    return {
        (kind, end): count
        for (kind, end), count in ends.items()
        if end not in EXPECTED[kind] and end != "closed"
    }

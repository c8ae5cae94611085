"""A client of gRPC that writes HTTP/2 frames itself: a message in pieces, or one that never ends.

It sends no more than the server's windows allow, as a client must; so what it could send is what
the server was willing to hold.
"""

import asyncio
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM = ACK = 1
END_HEADERS = 4
_FIRST = 65_535
"""Bytes of every window until the server says otherwise (RFC 9113 §6.9.2)."""


class Client:
    """A connection and one call on it."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.windows = {0: _FIRST, 1: _FIRST}
        self.initial = _FIRST
        self.sent = 0
        self.heard = b""  # the header blocks that came: literals of gRPC's core are plain
        self.ended = asyncio.Event()
        self._room = asyncio.Event()
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._frame(SETTINGS, 0, 0)
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @property
    def status(self):
        """The number of the status that ended the call, None if none did."""
        _, found, rest = self.heard.partition(b"\x0bgrpc-status")
        return int(rest[1 : 1 + rest[0]]) if found else None

    async def close(self):
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self.writer.transport.abort()

    def begin(self, path, *metadata):
        """Open the call."""
        fields = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()),
            (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
            *metadata,
        ]  # fmt: skip
        self._frame(HEADERS, END_HEADERS, 1, b"".join(_literal(*field) for field in fields))

    def announce(self, size):
        """Begin a message of so many bytes."""
        self._data(struct.pack("!BI", 0, size))

    def whole(self, message):
        """Send all of a short message."""
        self._data(struct.pack("!BI", 0, len(message)) + message, END_STREAM)

    async def pour(self, size):
        """Send so many bytes of it, unless the call ends before."""
        while size and not self.ended.is_set():
            piece = min(size, 16_384, *self.windows.values())
            if piece <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            self._data(bytes(piece))
            size -= piece
            await self.writer.drain()

    def _data(self, data, flags=0):
        for stream in self.windows:
            self.windows[stream] -= len(data)
        self.sent += len(data)
        self._frame(DATA, flags, 1, data)

    def _frame(self, kind, flags, stream, payload=b""):
        self.writer.write(struct.pack("!IBI", len(payload) << 8 | kind, flags, stream) + payload)

    async def _listen(self):
        try:
            while True:
                length, flags, stream = struct.unpack("!IBI", await self.reader.readexactly(9))
                payload = await self.reader.readexactly(length >> 8)
                self._take(length & 0xFF, flags, stream, payload)
        except (OSError, asyncio.IncompleteReadError):
            self._end()

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack_from("!HI", payload, at)
                if key == 4:
                    self.windows[1] += value - self.initial
                    self.initial = value
            self._frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            self.windows[stream] += struct.unpack("!I", payload)[0]
        elif kind == HEADERS:
            self.heard += payload
            if flags & END_STREAM:
                self._end()
        elif kind == RST_STREAM:
            self._end()
        self._room.set()

    def _end(self):
        self.ended.set()
        self._room.set()


async def connected(port, address="127.0.0.1"):
    """Connect from an address of this machine."""
    local = address, 0
    return Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))


def _literal(name, value):
    """Without indexing, a new name (RFC 7541 §6.2.2); both shorter than 127 bytes."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value

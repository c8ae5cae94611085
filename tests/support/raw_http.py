"""An HTTP client on a raw socket, byte by byte."""

import asyncio

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n"


def post(body, *lines):
    more = b"".join(line + b"\r\n" for line in lines)
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Client:
    """A connection, byte by byte."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def answer(self):
        """Return status, headers and body of the next answer."""
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def ended(self):
        """Return whether the server closes and sends nothing more."""
        async with asyncio.timeout(10):
            return await self.reader.read() == b""

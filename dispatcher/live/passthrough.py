"""An answer whose bytes are ready: written to the socket in one piece.

aiohttp's own response builds, serialises and writes headers in a dozen steps; that costs as much
as the rest of the gateway together. Small answers from model servers need none of it. What the
low-level server asks of a response is `prepare`, `write_eof`, `keep_alive`, `status` and
`body_length`; nothing else is promised here.
"""

from http import HTTPStatus

from aiohttp import HttpVersion11, web

from dispatcher.live.backend import Response

LARGEST = 64 * 1024
"""Bytes. A larger body goes through aiohttp's response, which waits for slow readers."""

_REASON = {status.value: status.phrase for status in HTTPStatus}


def fits(response: Response, request: web.BaseRequest) -> bool:
    """Return whether an answer may be written without waiting for its reader.

    Not if it is large, nor if the client already leaves earlier answers unread.
    """
    transport = request.transport
    return (
        len(response.body) <= LARGEST
        and transport is not None
        and transport.get_write_buffer_size() <= LARGEST
    )


class Passthrough:
    """A small model server's answer on its way to the client."""

    __slots__ = ("_response", "keep_alive", "more")

    def __init__(self, response: Response) -> None:
        self._response = response
        self.more = ""
        """Whole header lines of the gateway's own."""
        self.keep_alive = True

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def body_length(self) -> int:
        """Bytes in the body."""
        return len(self._response.body)

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write head and body; the connection stays open if the client wants it to."""
        response = self._response
        self.keep_alive = request.keep_alive
        encoding = response.content_encoding
        connection = ""
        if not self.keep_alive:
            connection = "Connection: close\r\n"
        elif request.version < HttpVersion11:
            connection = "Connection: keep-alive\r\n"
        extra = f"Content-Encoding: {encoding}\r\n" if encoding else ""
        head = (
            f"HTTP/1.1 {response.status} {_REASON.get(response.status, '')}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"{extra}{self.more}{connection}Content-Length: {len(response.body)}\r\n\r\n"
        )
        if request.transport is None:
            raise ConnectionResetError("the client is gone")
        request.transport.write(head.encode("latin-1") + response.body)

    async def write_eof(self) -> None:
        """Do nothing: everything was written."""

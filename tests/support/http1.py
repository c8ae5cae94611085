"""The gateway's HTTP/1.1 connections without sockets: bytes in, bytes out."""

from dispatcher.live.http.connection import Connection
from dispatcher.live.http.handler import Handler
from dispatcher.live.http.header_cache import HeaderCache
from dispatcher.live.http.messages import Response
from dispatcher.live.http.server import Server
from roma.config.gateway import LimitsConfig

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n"


def post(body, *lines):
    more = b"".join(line + b"\r\n" for line in lines)
    return HEAD + more + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class Transport:
    """An end of a connection: what was written, and whether it is closed."""

    def __init__(self):
        self.written = b""
        self.largest = 0
        self.closed = False

    def write(self, data):
        self.written += bytes(data)
        self.largest = max(self.largest, len(data))

    def get_extra_info(self, name):
        return ("::1", 1) if name == "peername" else None

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = write_eof = close

    def can_write_eof(self):
        return True

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Echo(Handler):
    """Answers with the body, at once or when asked to, and records each request."""

    def __init__(self, waits=False):
        self.seen = []
        self.waits = waits
        self.refuses = False

    def check_before_body(self, request):
        return Response(403, "text/plain", None, b"no", close=True) if self.refuses else None

    def handle(self, request, connection):
        head = request.head
        self.seen.append((head.method, head.target, head.version, head.headers, request.body))
        if not self.waits:
            self.answer(connection)

    def answer(self, connection):
        connection.respond(Response(200, "text/plain", None, self.seen[-1][4]))

    def error(self, request, status, message):
        return Response(status, "text/plain", None, message.encode(), close=True)


def serve(handler):
    server = Server(handler, LimitsConfig(), max_body_bytes=100_000)
    server.date = b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"  # answers are compared
    return server


def opened(server):
    """Return a new connection, and its transport."""
    one, transport = Connection(server), Transport()
    one.connection_made(transport)
    return one, transport


def talk(server, reads, *, forgets=False):
    """Return what a connection was answered to these reads, and whether it was closed."""
    one, transport = opened(server)
    for data in reads:
        if forgets:
            server.heads = HeaderCache()
        one.data_received(data)
        if server.handler.waits and server.handler.seen:
            server.handler.answer(one)
    one.connection_lost(None)
    return transport.written, transport.closed

"""Connection limits of the admin ports and of the supervisors' ports.

aiohttp limits neither the number of connections nor their idle time. Anyone who reaches such a port
could exhaust the program's descriptors and so stop health checks, metrics and clients. Here the
connection that has been idle longest is closed to make room for the next one, so that a probe is
answered during a flood.
"""

import asyncio
import contextlib
import logging
import math
import resource
import ssl
from collections.abc import AsyncIterator
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

from roma.domain.errors import LaunchError
from roma.security.handshake import Handshake
from roma.telemetry.logs import RateLimitedLogger
from roma.telemetry.reachability import reason

MOST = 128
"""Most connections of all these ports of a program together; also at most an eighth of its
descriptors."""

BACKLOG = 128
"""Most connections that the kernel holds until they are accepted."""

HEAD_TIMEOUT = 10.0
"""Most seconds from connecting, TLS included, to the end of the first request's head."""

IDLE_TIMEOUT = 75.0
"""Most seconds between two requests of a connection, including the head of the second one."""

BODY_TIMEOUT = 10.0
"""Most seconds for a request's body."""

WRITE_TIMEOUT = 30.0
"""Most seconds that a client may leave an answer unread."""

SWEEP = 1.0
"""Seconds between two sweeps for connections that timed out."""

log = logging.getLogger(__name__)


class AdminPorts:
    """The admin listeners of a program and their connections. Create it in a running loop."""

    def __init__(self) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = max(2, min(MOST, descriptors // 8))
        self.open: dict[Handshake | AdminConnection, None] = {}
        """All connections, including those in their TLS handshake."""
        self.closed = 0
        """Number of connections closed to make room, for being idle, or for not reading."""
        self._loop = asyncio.get_running_loop()
        self._reached = RateLimitedLogger(log, self._loop)
        self._by_handler: dict[object, AdminConnection] = {}
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    def __repr__(self) -> str:
        return f"<AdminPorts: {len(self.open)} of {self.most} connections>"

    def close(self) -> None:
        """Stop the sweeps; call it when all listeners are closed."""
        self._sweeper.cancel()
        self._reached.close()
        for connection in list(self.open):
            connection.abort()

    @contextlib.asynccontextmanager
    async def listening(
        self,
        app: web.Application,
        address: tuple[str, int],
        key: str,
        context: ssl.SSLContext | None = None,
        *,
        shutdown_timeout: float = 60.0,
    ) -> AsyncIterator[None]:
        """Serve an application until the block ends; raise LaunchError naming the port's key.

        Connections have `shutdown_timeout` seconds to end.
        """
        app.middlewares.insert(0, self._note)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=shutdown_timeout, auto_decompress=False
        )
        await runner.setup()
        try:
            assert runner.server is not None
            listener = await self._listen(_Entrance(self, runner.server, context), *address, key)
            try:
                yield
            finally:
                listener.close()
        finally:
            await runner.cleanup()

    async def _listen(
        self, entrance: "_Entrance", host: str, port: int, key: str
    ) -> asyncio.AbstractServer:
        try:
            return await self._loop.create_server(entrance, host, port, backlog=BACKLOG)
        except OSError as error:
            why = f"cannot listen on {host}: {reason(error)}"
            raise LaunchError(f"{key} = {port}: {why}") from error

    def add(self, connection: "Handshake | AdminConnection") -> bool:
        """Count a connection, closing an idle one if necessary; return whether it may stay."""
        if len(self.open) >= self.most:
            idle = [c for c in self.open if isinstance(c, Handshake) or not c.is_busy]
            what = "the one that was idle longest is closed" if idle else "one more is closed"
            text = "%d connections of admin ports are open: limit reached (ulimit -n): %s"
            self._reached.log("connections", logging.WARNING, text, len(self.open), what)
            self.closed += 1
            if not idle:
                return False
            oldest = min(idle, key=lambda c: c.since)
            self.discard(oldest)
            oldest.abort()
        self.open[connection] = None
        return True

    def discard(self, connection: "Handshake | AdminConnection") -> None:
        """Forget a connection."""
        self.open.pop(connection, None)

    def attach(self, handler: object, connection: "AdminConnection | None") -> None:
        """Record the connection whose requests aiohttp's `handler` reads; None when it is lost."""
        if connection is None:
            self._by_handler.pop(handler, None)
        else:
            self._by_handler[handler] = connection

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as busy while its request is handled."""
        connection = self._by_handler.get(request.protocol)
        if connection is None:  # it was lost meanwhile
            return await handler(request)
        connection.is_busy = True
        try:
            return await handler(request)
        finally:
            connection.rest(self._loop.time())

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)
        now = self._loop.time()
        for connection in [c for c in self.open if isinstance(c, AdminConnection) and c.due <= now]:
            self.closed += 1
            connection.abort()


class AdminConnection(asyncio.Protocol):
    """A connection; its requests are read and answered by aiohttp."""

    def __init__(
        self, ports: AdminPorts, server: web.Server, handshake: Handshake | None = None
    ) -> None:
        self._ports = ports
        self._handshake = handshake
        """The TLS handshake, which is counted in place of the connection until it ends."""
        self._loop = asyncio.get_running_loop()
        self._handler = server()
        self._transport: asyncio.BaseTransport | None = None
        self._unread = math.inf
        """Time since which the client has left an answer unread."""
        self._limit = HEAD_TIMEOUT
        self.is_busy = False
        """True while a request is being answered."""
        self.since = 0.0
        """Time at which it was last busy, or connected, on the loop's clock."""

    @property
    def due(self) -> float:
        """Time at which it exceeds its idle or write timeout."""
        unread = self._unread + WRITE_TIMEOUT
        return unread if self.is_busy else min(unread, self.since + self._limit)

    def rest(self, now: float) -> None:
        """Mark the connection as idle after a request is answered."""
        self.is_busy, self.since, self._limit = False, now, IDLE_TIMEOUT

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            cast(asyncio.Transport, self._transport).abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with its owner, which may refuse it."""
        self._transport, self.since = transport, self._loop.time()
        self._ports.attach(self._handler, self)
        self._handler.connection_made(transport)
        if self._handshake is not None:
            self._ports.discard(self._handshake)
            self._handshake = None
        if not self._ports.add(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass the call on to aiohttp's handler."""
        self._handler.data_received(data)

    def eof_received(self) -> None:
        """Pass the call on to aiohttp's handler."""
        self._handler.eof_received()

    def pause_writing(self) -> None:
        """Record that the client does not read."""
        self._unread = self._loop.time()
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Record that the client has read."""
        self._unread = math.inf
        self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from its owner."""
        self._transport = None
        self._ports.discard(self)
        self._ports.attach(self._handler, None)
        self._handler.connection_lost(exc)


class _Entrance:
    """Factory of the protocols of one listener, with a handshake if it has a TLS context."""

    def __init__(
        self, ports: AdminPorts, server: web.Server, context: ssl.SSLContext | None
    ) -> None:
        self._ports = ports
        self._server = server
        self._context = context

    def __call__(self) -> asyncio.Protocol:
        if self._context is None:
            return AdminConnection(self._ports, self._server)
        return Handshake(self, self._context, HEAD_TIMEOUT)

    def on_accepted(self, handshake: Handshake) -> AdminConnection | None:
        if not self._ports.add(handshake):
            return None
        return AdminConnection(self._ports, self._server, handshake)

    def on_end(self, handshake: Handshake) -> None:
        self._ports.discard(handshake)

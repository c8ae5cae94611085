"""The HTTP server: accepts clients within limits, enforces timeouts, drains."""

import asyncio
import ssl
from typing import Any, cast

from dispatcher.live.http.connection import Connection
from dispatcher.live.http.connections import Connections
from dispatcher.live.http.handler import Handler
from dispatcher.live.http.origins import Origins
from dispatcher.live.http.responses import date_line
from roma.config.gateway import LimitsConfig
from roma.security.handshake import Handshake

BACKLOG = 4096
"""Connections that the kernel may hold until they are accepted (bounded by net.core.somaxconn)."""

CROWDED = 1.0
"""Seconds after which a TLS handshake is closed for the next client, if all connections are in use:
it takes milliseconds, so such a client sends nothing."""

SWEEP = 0.25
"""Longest time in seconds between two sweeps for timeouts: a timer for each would cost more."""


class Server(Connections):
    """The listening socket, and the sweep over its connections."""

    def __init__(
        self,
        handler: Handler,
        limits: LimitsConfig,
        *,
        max_body_bytes: int,
        origins: Origins | None = None,
    ) -> None:
        super().__init__(handler, limits, max_body_bytes=max_body_bytes, origins=origins)
        timeouts = (limits.head_timeout, limits.body_timeout, limits.idle_timeout)
        self._every = min(SWEEP, *timeouts, limits.write_timeout)
        self._sweeper = self._loop.call_later(self._every, self._sweep)
        self._listener: asyncio.Server | None = None

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, shared: bool = False
    ) -> None:
        """Accept connections; raise OSError. `shared`: others may listen there as well."""
        options: dict[str, Any] = {"reuse_port": True} if shared else {}

        def accepted() -> asyncio.Protocol:
            if tls is None:
                return cast(asyncio.Protocol, Connection(self))
            return Handshake(self, tls, self.bounds.head_timeout)

        self._listener = await self._loop.create_server(
            accepted, host, port, backlog=BACKLOG, **options
        )

    def stop_listening(self) -> None:
        """Stop accepting; existing connections stay open."""
        if self._listener is not None:
            self._listener.close()

    def close_idle(self) -> None:
        """Close connections between two requests: clients send the next one over another."""
        for connection in [c for c in self.connections if c.is_idle]:
            connection.close()

    async def close(self, timeout: float) -> None:
        """Close all connections, and wait until they are or `timeout` has passed."""
        self.is_draining = True
        self.stop_listening()
        for handshake in list(self.handshakes):
            handshake.abort()
        for connection in list(self.connections):
            connection.close()
        ends = self._loop.time() + timeout
        while self.connections and self._loop.time() < ends:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        self._sweeper.cancel()
        self._reached.close()
        await asyncio.sleep(0)  # one turn of the loop lets the transports close

    def on_accepted(self, handshake: Handshake) -> Connection | None:
        """Count a connection before its handshake; one too many is not worth a handshake."""
        connection = Connection(self)
        connection.peer, connection.handshake = handshake.peer, handshake
        self.handshakes[handshake] = connection
        if self.open > self.limits.connections:
            oldest = next(iter(self.handshakes))
            if self._loop.time() - oldest.since > CROWDED:
                oldest.abort()
                self.on_end(oldest)
        return connection if self._counted(handshake.peer) is None else None

    def _sweep(self) -> None:
        now = self.now = self._loop.time()
        self.date = date_line()
        self._sweeper = self._loop.call_later(self._every, self._sweep)
        for connection in [c for c in self.connections if c.due <= now]:
            connection.on_due()

"""TLS handshakes whose connections count against limits from the moment they are accepted.

An asyncio listener with a TLS context reports a connection only after its handshake. Clients that
connect and send nothing would escape every limit and hold a descriptor each.
"""

import asyncio
import logging
import os
import socket
import ssl
from typing import Any, Protocol, cast

log = logging.getLogger(__name__)


class HandshakeOwner(Protocol):
    """Owner of connections, which counts them from the moment they are accepted."""

    def on_accepted(self, handshake: "Handshake") -> Any:
        """Count a connection; return its protocol, or None to close it at once.

        `connection_made` of the protocol is called after the handshake; until then the connection
        belongs to `handshake`.
        """

    def on_end(self, handshake: "Handshake") -> None:
        """Forget a connection, unless its handshake completed."""


class Handshake(asyncio.Protocol):
    """TLS handshake of one connection; the protocol of a listener without a TLS context.

    It ends within `timeout` seconds. The descriptor is moved from the plain transport to a new one
    with TLS, because `loop.start_tls` comes too late: uvloop may read the client's first bytes
    before it.
    """

    def __init__(self, owner: HandshakeOwner, context: ssl.SSLContext, timeout: float) -> None:
        self._owner = owner
        self._context = context
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None
        self._sock: socket.socket | None = None
        self.peer = ""
        """The client's address."""
        self.since = 0.0
        """Time at which it was accepted, on the loop's clock."""

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._task is not None:
            self._task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the owner and begin the handshake."""
        # uvloop's transports have the interface without the base class.
        raw = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self.peer, self.since = peer_of(raw), loop.time()
        protocol = self._owner.on_accepted(self)
        try:
            if protocol is not None:
                self._sock = socket.socket(fileno=os.dup(raw.get_extra_info("socket").fileno()))
        except OSError:  # no descriptor is left
            pass
        raw.abort()
        if self._sock is None:
            self._owner.on_end(self)
            return
        self._task = loop.create_task(self._run(loop, protocol))
        self._task.add_done_callback(self._on_end)

    async def _run(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        sock, self._sock = self._sock, None
        assert sock is not None
        await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=self._context, ssl_handshake_timeout=self._timeout
        )

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        if self._sock is not None:  # aborted before it began
            self._sock.close()
        self._owner.on_end(self)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):
            # An OSError means: not TLS, an untrusted certificate, a timeout, or a client that left.
            log.error("handshake of %s", self.peer, exc_info=error)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Return a client's address without its port; empty for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""

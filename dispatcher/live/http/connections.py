"""All clients' connections of one server: their limits, their bytes, and which are closed first."""

import asyncio
import logging
from collections import Counter

from dispatcher.live.http.handler import ClientConnection, Handler
from dispatcher.live.http.header_cache import HeaderCache
from dispatcher.live.http.origins import Origins
from dispatcher.live.http.request import Head
from dispatcher.live.http.responses import date_line
from roma.config.gateway import LimitsConfig
from roma.security.handshake import Handshake, peer_of
from roma.security.tls import certificate_name
from roma.telemetry.logs import RateLimitedLogger

log = logging.getLogger(__name__)

TOLD = 32
"""Connections beyond a limit that get an error and stay until it is sent; more are just closed."""

STUCK = 1.0
"""Seconds after which a client that takes nothing of its answer is closed to make room for others,
if all `buffered_bytes` are in use."""


class Bounds:
    """Limits of one connection, from `gateway.limits`: read many times for each request."""

    __slots__ = (
        "body_timeout",
        "buffered_bytes",
        "head_bytes",
        "head_timeout",
        "idle_timeout",
        "length_digits",
        "max_body_bytes",
        "write_timeout",
    )

    def __init__(self, limits: LimitsConfig, max_body_bytes: int) -> None:
        self.head_timeout = float(limits.head_timeout)
        self.body_timeout = float(limits.body_timeout)
        self.idle_timeout = float(limits.idle_timeout)
        self.write_timeout = float(limits.write_timeout)
        self.head_bytes = int(limits.head_bytes)
        self.buffered_bytes = int(limits.buffered_bytes)
        self.max_body_bytes = max_body_bytes
        self.length_digits = len(str(max_body_bytes))
        """Digits of a Content-Length that may be too large: a shorter one need not be parsed."""

    def large_head(self) -> tuple[int, str]:
        """Return the status and the reason by which a head that is too large is refused."""
        return 431, f"request head is larger than {self.head_bytes} bytes"

    def large_body(self) -> tuple[int, str]:
        """Return the same for a body."""
        return 413, f"request body is larger than {self.max_body_bytes} bytes"


class Connections:
    """The connections of a server, within `gateway.limits`.

    `now` is the loop's time at the last sweep, `date` the last line of heads from then: exact
    enough for timeouts and clients, and free.
    """

    def __init__(
        self,
        handler: Handler,
        limits: LimitsConfig,
        *,
        max_body_bytes: int,
        origins: Origins | None = None,
    ) -> None:
        self.handler = handler
        self.origins = Origins() if origins is None else origins
        self.bound(limits, max_body_bytes)
        self.buffered = 0
        """Bytes of requests being read or answered, and of answers that clients leave unread."""
        self.unsent = 0
        """The part of them that belongs to answers."""
        self.unread: dict[ClientConnection, None] = {}
        """Connections whose clients leave answers unread, the longest first."""
        self.patience = STUCK
        self.closed_unread = 0
        """Connections of such clients that were closed to make room."""
        self.is_draining = False
        self.connections: set[ClientConnection] = set()
        self.handshakes: dict[Handshake, ClientConnection] = {}
        """TLS connections before the end of their handshake, the oldest first; they count as
        connections."""
        self.handshakes_failed = 0
        self.turned_away = 0
        self._by_address: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self.now, self.date = self._loop.time(), date_line()
        self._crowded = 0.0
        self._reached = RateLimitedLogger(log, self._loop)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {len(self.connections)} connections, {self.buffered} bytes>"
        )

    def bound(self, limits: LimitsConfig, max_body_bytes: int) -> None:
        """Apply these limits from now on."""
        self.limits = limits
        self.bounds = Bounds(limits, max_body_bytes)
        self.heads: HeaderCache[Head] = HeaderCache()  # cached headers may exceed the new limits

    @property
    def open(self) -> int:
        """Number of clients' connections, including those in their TLS handshake."""
        return len(self.connections) + len(self.handshakes)

    @property
    def answering(self) -> int:
        """Number of clients with an accepted request: its body or answer is not complete yet."""
        return sum(c.is_answering for c in self.connections)

    def on_connected(
        self, connection: ClientConnection, transport: asyncio.Transport
    ) -> str | None:
        """Add a connection; return why it is refused, if it is."""
        tls = transport.get_extra_info("ssl_object")
        self.connections.add(connection)
        if connection.handshake is not None:  # it is counted
            self.handshakes.pop(connection.handshake, None)
            connection.handshake = None
        if tls is not None:
            connection.is_tls = True
            connection.certificate = certificate_name(tls.getpeercert())
            return None
        connection.peer = peer_of(transport)
        refused = self._counted(connection.peer)
        if refused is not None and self._is_flooded_by(connection.peer):
            transport.abort()
        return refused

    def on_disconnected(self, connection: ClientConnection) -> None:
        """Remove a connection."""
        self.connections.discard(connection)
        self._uncount(connection.peer)

    def on_end(self, handshake: Handshake) -> None:
        """Remove a connection that was not secured."""
        if handshake in self.handshakes:
            del self.handshakes[handshake]
            self.handshakes_failed += 1
            self._uncount(handshake.peer)

    def make_room(self, size: int) -> bool:
        """Return True if so many bytes fit, if need be after closing clients that are stuck.

        It looks for stuck clients once a sweep: there may be thousands.
        """
        most = self.bounds.buffered_bytes
        if self.buffered + size > most and self._crowded != self.now:
            self._crowded = self.now
            for connection in list(self.unread):
                if self.buffered + size <= most:
                    break
                if connection.is_stuck():
                    self.closed_unread += 1
                    what = f"{connection.peer} does not read its answer and is closed"
                    self.reached("buffered_bytes", most, what)
                    connection.abort()
        return self.buffered + size <= most

    def no_room(self, peer: str, size: int = 0) -> str:
        """Return the error for a client whose request or answer, of `size` bytes, is too much."""
        most = self.bounds.buffered_bytes
        self.reached("buffered_bytes", most, f"a request of {peer} is refused")
        return f"{self.buffered + size} bytes of requests and answers are held: limit reached"

    def reached(self, key: str, bound: object, what: str) -> None:
        """Log that a limit refuses a client: a line a second for each `key` of `gateway.limits`."""
        text = "gateway.limits.%s = %s is reached: %s"
        self._reached.log(key, logging.WARNING, text, key, bound, what)

    def _counted(self, peer: str) -> str | None:
        """Count a connection of `self.open`; return why it is refused, if it is."""
        self._by_address[peer] += 1
        most, per_address = self.limits.connections, self.limits.connections_per_address
        if self.open > most:
            self.turned_away += 1
            self.reached("connections", most, f"a connection of {peer} is refused")
            return f"{most} connections are open: limit reached"
        if per_address is not None and self._by_address[peer] > per_address:
            self.turned_away += 1
            key = "connections_per_address"
            self.reached(key, per_address, f"a connection of {peer} is refused")
            return f"{per_address} connections of one address are open: limit reached"
        return None

    def _is_flooded_by(self, peer: str) -> bool:
        """Return True if more than TOLD connections beyond a limit are open."""
        most, per_address = self.limits.connections, self.limits.connections_per_address
        # The refused ones of an address must not take the connections of the others.
        if per_address is not None and self._by_address[peer] > per_address + TOLD:
            return True
        return self.open > most + TOLD

    def _uncount(self, peer: str) -> None:
        self._by_address[peer] -= 1
        if not self._by_address[peer]:
            del self._by_address[peer]

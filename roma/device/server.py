"""Server of one planned device: one dispatcher at a time, over `roma.device_protocol`.

While a dispatcher is connected, others are refused, because two plans for one device conflict. When
its connection closes, waiting actions are dropped and running ones finish. Only then does the next
dispatcher get the list of loaded models, so that the list is correct.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from roma.config.watched_file import Watched
from roma.device.device import DeviceRunner
from roma.device.runtimes.base import RuntimeModel
from roma.device_protocol import (
    MAX_HEADER,
    MAX_PAYLOAD,
    ActionResult,
    Connect,
    Decoder,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Submit,
    encode,
)
from roma.domain.actions import ActionStatus
from roma.domain.errors import LaunchError, WireError
from roma.security.tokens import Token
from roma.telemetry.reachability import reason

CONNECT_LIMIT = 5.0
"""Seconds within which a new connection must authenticate."""
MAX_UNAUTHENTICATED = 16
"""Most connections that have not authenticated."""
_UNAUTHENTICATED_HEADER = 16 * 2**10
_BUFFER = 8 * 2**20
"""Bytes of unread results at which the server stops reading from a slow dispatcher."""
MAX_UNREAD = 512 * 2**20
"""Bytes of unread results at which a dispatcher is disconnected; running actions add to them."""

# A dispatcher's host that fails closes no connection: the kernel detects it within 15 s, whether
# sent data is unacknowledged or there is nothing to send.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 5,
    socket.TCP_USER_TIMEOUT: 15_000,
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceServerSettings:
    """Settings of a device's listener: address, name, token and limits."""

    name: str
    host: str = "127.0.0.1"
    port: int = 8700
    """Port to listen on; 0 takes a free one."""
    token: Watched[Token] | None = None
    max_payload: int = MAX_PAYLOAD
    """Largest inputs of one action, in bytes."""


async def check_address(settings: DeviceServerSettings) -> None:
    """Raise LaunchError if the address cannot be listened on now; accept no connection there."""
    loop = asyncio.get_running_loop()
    where = settings.host, settings.port
    with _naming(*where):
        server = await loop.create_server(asyncio.Protocol, *where, start_serving=False)
    server.close()


@contextlib.contextmanager
def _naming(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError, UnicodeError) as error:  # the last: no name of a host
        raise LaunchError(f"{host}:{port}: cannot be listened on: {reason(error)}") from error


class DeviceServer:
    """Server of a started `DeviceRunner`; `models` hold the signatures of its models."""

    def __init__(
        self, settings: DeviceServerSettings, device: DeviceRunner, models: dict[str, RuntimeModel]
    ) -> None:
        self.settings = settings
        self.device = device
        self._signatures = {name: model.signatures for name, model in models.items()}
        self._server: asyncio.Server
        self._links: set[_Link] = set()
        self._dispatcher: _Link | None = None

    def __repr__(self) -> str:
        return f"<DeviceServer {self.settings.name}: {self._dispatcher or 'no dispatcher'}>"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, once started."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def unauthenticated(self) -> int:
        """Number of connections that have not authenticated."""
        return len(self._links) - (self._dispatcher is not None)

    async def start(self) -> None:
        """Listen; raises LaunchError."""
        loop = asyncio.get_running_loop()
        where = self.settings.host, self.settings.port
        with _naming(*where):
            self._server = await loop.create_server(lambda: _Link(self), *where)

    async def stop(self, limit: float) -> bool:
        """Stop listening; finish and report running actions; return whether `limit` sufficed."""
        self._server.close()
        ended = await self.device.stop(limit)
        gone = [link.close() for link in self._links]
        if gone:
            await asyncio.wait(gone, timeout=limit)
        for link in tuple(self._links):
            link.abort()
        return ended

    def on_open(self, link: "_Link") -> None:
        """Count a connection."""
        self._links.add(link)
        if self.unauthenticated > MAX_UNAUTHENTICATED:
            link.refuse(f"connections = {self.unauthenticated}: must be ≤ {MAX_UNAUTHENTICATED}")

    def on_gone(self, link: "_Link") -> None:
        """Forget a connection; if it was the dispatcher's, drop its waiting actions."""
        self._links.discard(link)
        if link is self._dispatcher:
            self._dispatcher = None
            self.device.drop()
            _log.info("%s is gone; loaded: %d", link, len(self.device.offer.loaded))

    def admit(self, link: "_Link", message: Connect) -> None:
        """Admit a dispatcher, or refuse it with a reason."""
        token = self.settings.token
        if token is not None and not token.value.matches(message.token):
            _log.warning("%s: its token is not accepted", link)
            link.refuse("token: is not the one that this device was given")
        elif self._dispatcher is not None:
            _log.warning("%s: another dispatcher is connected: %s", link, self._dispatcher)
            link.refuse(f"a device takes one dispatcher: {self._dispatcher} is connected")
        else:
            self._dispatcher = link
            link.greet()

    def hello(self) -> Hello:
        """Return the first message to an admitted dispatcher."""
        return Hello(self.settings.name, self.device.offer, self._signatures)


class _Link(asyncio.Protocol):
    """A connection."""

    def __init__(self, server: DeviceServer) -> None:
        self._server = server
        self._decoder = Decoder(max_payload=0, max_header=_UNAUTHENTICATED_HEADER)
        self._name = ""
        self._is_known = self._is_greeted = False
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle
        self._greeting: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None]

    def __repr__(self) -> str:
        peer = self._transport.get_extra_info("peername") or ("?", 0)
        return f"{self._name or 'an unknown dispatcher'} at {peer[0]}:{peer[1]}"

    def connection_made(self, transport: Any) -> None:
        loop = asyncio.get_running_loop()
        self._transport = transport
        self._gone = loop.create_future()
        transport.set_write_buffer_limits(high=_BUFFER)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._timer = loop.call_later(CONNECT_LIMIT, self._on_silence)
        self._server.on_open(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._on_message(message)
        except WireError as error:
            _log.warning("%s: %s", self, error)
            self.refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if self._greeting is not None:
            self._greeting.cancel()
        self._server.on_gone(self)
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def greet(self) -> None:
        """Send Hello once a previous dispatcher's running actions have ended."""
        self._greeting = asyncio.ensure_future(self._greet())

    def refuse(self, reason: str) -> None:
        """Send the reason and close the connection."""
        self._send(Refused(reason))
        self._transport.close()

    def close(self) -> "asyncio.Future[None]":
        """Close the connection after pending data is sent; the future is done once it is closed."""
        self._transport.close()
        return self._gone

    def abort(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()

    def _on_message(self, message: Message) -> None:
        if self._transport.is_closing():
            return
        match message:
            case Connect(dispatcher) if not self._is_known:
                self._is_known = True
                self._name = dispatcher[:80]
                self._timer.cancel()
                self._server.admit(self, message)
            case Ping(sent) if self._is_greeted:
                self._send(Pong(sent, time.monotonic()))
            case Submit() if self._is_greeted:
                self._server.device.submit(message, self._reply)
            case _:
                raise WireError(f"{type(message).__name__}: must not come now")

    async def _greet(self) -> None:
        await self._server.device.quiet()
        self._decoder.max_payload = self._server.settings.max_payload
        self._decoder.max_header = MAX_HEADER
        self._is_greeted = True
        try:
            self._send(self._server.hello())
        except WireError as error:
            _log.error("%s: cannot be told what is here: %s", self, error)
            self.refuse(str(error))
            return
        _log.info("%s is connected", self)

    def _reply(self, result: ActionResult) -> None:
        try:
            self._send(result)
        except WireError as error:  # an output has a type or a size that cannot be sent
            outcome = replace(result.outcome, status=ActionStatus.ERROR, detail=str(error))
            self._send(ActionResult(outcome))

    def _send(self, message: Message) -> None:
        if self._transport.is_closing():
            return
        self._transport.writelines(encode(message))
        unread = self._transport.get_write_buffer_size()
        if unread > MAX_UNREAD:
            _log.error("%s: does not read: %d bytes: must be ≤ %d", self, unread, MAX_UNREAD)
            self._transport.abort()

    def _on_silence(self) -> None:
        self.refuse(f"nothing came in {CONNECT_LIMIT:g} s: a dispatcher begins with Connect")

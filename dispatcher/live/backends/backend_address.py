"""Routes messages for one executable: HTTP through a pool, gRPC through a channel if it has one.

The driver sends a call's message without knowing its protocol. gRPC messages are opaque bytes, like
HTTP bodies; this module does not import grpc.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dispatcher.live.backends.http_client import Pool
from dispatcher.live.backends.http_connection import Attempt, Done
from dispatcher.live.http.messages import Message, Response
from roma.domain.errors import BackendError

MAX_LOOKUPS: Final = 4
"""Concurrent look-ups per executable; `lookups.py` shares their answers."""

Metadata = tuple[tuple[str, str | bytes], ...]
"""gRPC's headers: lower-case names; values of names that end in -bin are bytes."""


Renamed = Callable[[bytes, str], bytes]
"""Returns a message that names another model."""


@dataclass(slots=True)
class GrpcMessage:
    """A gRPC call as the model server gets it; `path` is /package.Service/Method.

    `renamed` is given for an inference.
    """

    path: str
    body: bytes
    renamed: Renamed | None = None

    def for_variant(self, _: str, variant: str) -> "GrpcMessage":
        """Return the message that asks a model server for a variant of its model."""
        assert self.renamed is not None
        return GrpcMessage(self.path, self.renamed(self.body, variant))


@dataclass(slots=True)
class GrpcResponse:
    """A model server's answer to a gRPC call, unchanged; `code` is gRPC's number, 0 is OK."""

    code: int
    body: bytes = b""
    message: str = ""
    trailing: Metadata = ()


Answer = Response | GrpcResponse
"""A model server's answer, in either protocol."""

GrpcDone = Callable[[GrpcResponse | BackendError], None]
AnyDone = Callable[[Response | GrpcResponse | BackendError], None]


class Channel(Protocol):
    """gRPC calls to one executable."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""

    def send(self, message: GrpcMessage, done: GrpcDone, *, timeout: float, more: str) -> Attempt:
        """Send a message, as a `Pool` does; `more` are header lines, which become metadata."""

    async def fetch(self, message: GrpcMessage, *, timeout: float) -> GrpcResponse:
        """Make a call that is no inference; raise a `BackendError`."""

    def stream(self, method: str, questions: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Forward a bidirectional stream."""

    async def check(self, timeout: float) -> None:
        """Return when it is connected; raise a `BackendError`."""

    async def close(self) -> None:
        """Close; calls in flight end with an error."""


class BackendAddress:
    """The connections to one executable; `channel` is None for one without a gRPC address."""

    __slots__ = ("channel", "lookups", "pool")

    def __init__(self, pool: Pool, channel: Channel | None = None) -> None:
        self.pool = pool
        self.channel = channel
        self.lookups = asyncio.Semaphore(MAX_LOOKUPS)

    def __repr__(self) -> str:
        return f"<BackendAddress {self.pool!r}, {self.channel!r}>"

    def send(
        self, message: Message | GrpcMessage, done: AnyDone, *, timeout: float, more: str = ""
    ) -> Attempt:
        """Send a message; `done` is called exactly once, from the event loop."""
        if isinstance(message, Message):
            http: Done = done
            return self.pool.send(message, http, timeout=timeout, more=more)
        channel = self.channel
        if channel is None:  # the front end checks first; a reload may come in between
            raise BackendError("it has no gRPC address")
        return channel.send(message, done, timeout=timeout, more=more)

    def address(self, message: Message | GrpcMessage) -> tuple[str, int | None]:
        """Return the destination of a message: host and port, or the path of a Unix socket."""
        if self.channel is not None and isinstance(message, GrpcMessage):
            return self.channel.address
        if self.pool.socket is not None:
            return self.pool.socket, None
        return self.pool.host, self.pool.port

    async def close(self) -> None:
        """Close every connection; requests in flight end with an error."""
        await self.pool.close()
        if self.channel is not None:
            await self.channel.close()

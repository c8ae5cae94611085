"""What calls may take at the gRPC port: places, and bytes of messages.

`gateway.limits` and `max_body_bytes` hold for both of the clients' ports. They are the HTTP
server's, which a reload replaces, and the bytes of both ports are one sum there. gRPC shows neither
connections nor a message that is not whole yet. So open calls are counted where HTTP counts
connections, and a message from when it is here until its call has ended.

Two bounds stay in gRPC what they were when the port was opened, `max_body_bytes` and
`limits.head_bytes`: a smaller one holds at once, a larger one takes a restart (`roma.config.diff`).
"""

import asyncio
from collections import Counter
from typing import Any, Self

import grpc

from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.grpc import callers
from dispatcher.live.grpc.responses import RefusedCall
from dispatcher.live.http.responses import LARGE
from dispatcher.live.http.server import Server

RETRY = 1.0
"""Seconds after which a call that found no place may be sent again."""

UNAUTHENTICATED_CALLS = 16
"""Messages that are read at once of those who showed no key; the oldest makes room for one more.
What is asked without a key comes in one packet, so only those who hold it back are sent away."""

UNAUTHENTICATED_TIMEOUT = 1.0
"""Seconds for such a message."""

MAX_HEALTH_MESSAGE = 4096
"""Bytes of such a message, at most: it has a name in it."""

_FIELD = 32
"""Bytes that a field of metadata counts beside its name and value (RFC 9113 §6.5.2)."""

_Code = grpc.StatusCode
_ServicerContext = Any


class ConnectionLimits:
    """The open calls; `take` one of their places for a call that comes."""

    def __init__(self, http: Server) -> None:
        self.http = http
        self.taken = 0
        self.unauthenticated: dict[asyncio.Timeout, None] = {}
        """Messages that are being read of those who showed no key, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._head_bytes = http.limits.head_bytes

    def __repr__(self) -> str:
        return (
            f"<ConnectionLimits: {self.taken} calls, {len(self.unauthenticated)} unauthenticated>"
        )

    def take(self, context: _ServicerContext) -> "CallSlot":
        """Return a call's place, to be left as a `with` block is; raise Refused."""
        limits, address = self.http.limits, callers.address(context)
        most, per_address = limits.connections, limits.connections_per_address
        if self.taken >= most:
            self.http.reached("connections", most, f"a gRPC call of {address} is refused")
            raise _no_slot(f"{most} calls are open: limit reached")
        if per_address is not None and self._by_address[address] >= per_address:
            key = "connections_per_address"
            self.http.reached(key, per_address, f"a gRPC call of {address} is refused")
            raise _no_slot(f"{per_address} calls of one address are open: limit reached")
        if limits.head_bytes < self._head_bytes:  # else gRPC has looked
            size = sum(len(k) + len(v) + _FIELD for k, v in context.invocation_metadata() or ())
            if size > limits.head_bytes:
                text = f"metadata of {size} bytes: larger than max ({limits.head_bytes})"
                raise RefusedCall(_Code.RESOURCE_EXHAUSTED, text)
        self.taken += 1
        self._by_address[address] += 1
        return CallSlot(self, context, address)

    def leave(self, address: str) -> None:
        """Take a place back."""
        self.taken -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def no_room(self, address: str, size: int) -> RefusedCall:
        """Return the answer to a call whose message or answer is one too many."""
        return _no_slot(self.http.no_room(address, size))

    def hold_answer(self, context: _ServicerContext, answer: GrpcResponse) -> GrpcResponse:
        """Count an answer until gRPC has sent it; return it, or a refusal if there is no room.

        gRPC sends no more than a client reads, and ends the call when it has sent all.
        """
        http, size = self.http, len(answer.body)
        if size <= LARGE:
            return answer
        if http.unsent and not http.make_room(size):
            return self.no_room(callers.address(context), size).answer

        def sent(_: object) -> None:
            http.buffered -= size
            http.unsent -= size

        http.buffered += size
        http.unsent += size
        context.add_done_callback(sent)
        return answer


class CallSlot:
    """One call's: what it holds is given back when the block ends, whichever way."""

    __slots__ = ("_address", "_context", "_held", "_is_left", "_limits")

    def __init__(self, places: ConnectionLimits, context: _ServicerContext, address: str) -> None:
        self._limits = places
        self._context = context
        self._address = address
        self._held = 0
        self._is_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hold(0)
        self._is_left = True
        self._limits.leave(self._address)

    async def message(self) -> bytes:
        """Read the call's message; raise Refused, also where there is none."""
        found = await self.next_message()
        if found is None:
            raise _no_message()
        return found

    async def next_message(self) -> bytes | None:
        """Read one more message, None after the last; the one before it is held no longer."""
        self._hold(0)
        http = self._limits.http
        if http.buffered >= http.limits.buffered_bytes and not http.make_room(1):
            raise self._limits.no_room(self._address, 0)
        return self._admitted(await self._read(asyncio.timeout(http.limits.body_timeout)))

    async def unauthenticated_message(self) -> bytes:
        """Read the message of somebody who need not show a key; raise Refused.

        It is not held: there are few at a time, and short ones.
        """
        unauthenticated = self._limits.unauthenticated
        while len(unauthenticated) >= UNAUTHENTICATED_CALLS:
            oldest = next(iter(unauthenticated))
            del unauthenticated[oldest]
            if not oldest.expired():
                oldest.reschedule(0.0)
        reading = asyncio.timeout(
            min(UNAUTHENTICATED_TIMEOUT, self._limits.http.limits.body_timeout)
        )
        unauthenticated[reading] = None
        try:
            found = await self._read(reading)
        finally:
            unauthenticated.pop(reading, None)
        if found is None:
            raise _no_message()
        if len(found) > MAX_HEALTH_MESSAGE:
            raise _too_large(len(found), MAX_HEALTH_MESSAGE)
        return found

    async def _read(self, timeout: asyncio.Timeout) -> bytes | None:
        try:
            async with timeout:
                found = await self._context.read()
        except TimeoutError:
            raise RefusedCall(_Code.DEADLINE_EXCEEDED, "the message came too slowly") from None
        return None if found is grpc.aio.EOF else found

    def _admitted(self, found: bytes | None) -> bytes | None:
        """Hold a message; raise Refused if it is too large, or too much together with others."""
        http, size = self._limits.http, len(found or b"")
        if size > http.bounds.max_body_bytes:
            raise _too_large(size, http.bounds.max_body_bytes)
        if not http.make_room(size):
            # Whoever comes last makes room, as over HTTP.
            raise self._limits.no_room(self._address, size)
        self._hold(size)
        return found

    def _hold(self, size: int) -> None:
        if self._is_left:  # a question that came while its conversation ended
            return
        self._limits.http.buffered += size - self._held
        self._held = size


def _no_slot(text: str) -> RefusedCall:
    return RefusedCall(_Code.RESOURCE_EXHAUSTED, text, retry_after=RETRY)


def _too_large(size: int, most: int) -> RefusedCall:
    text = f"message of {size} bytes: larger than max ({most})"
    return RefusedCall(_Code.RESOURCE_EXHAUSTED, text)


def _no_message() -> RefusedCall:
    return RefusedCall(_Code.INVALID_ARGUMENT, "The call has no message")

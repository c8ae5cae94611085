"""Limits of calls at the gRPC port: number of open calls, and bytes of messages.

`gateway.limits` and `max_body_bytes` hold for both of the clients' ports. They belong to the HTTP
server, where a reload replaces them, and it counts the bytes of both ports as one sum. gRPC shows
neither connections nor incomplete messages. So open calls are counted where HTTP counts
connections, and a message counts from its arrival until its call has ended.

Two bounds of gRPC keep the values they had when the port was opened, `max_body_bytes` and
`limits.head_bytes`: a smaller one applies at once, a larger one requires a restart
(`roma.config.diff`).
"""

import asyncio
from collections import Counter
from typing import Any, Self

import grpc

from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.grpc import callers
from dispatcher.live.grpc.responses import RefusedCall, bad_request
from dispatcher.live.http.responses import LARGE
from dispatcher.live.http.server import Server

RETRY = 1.0
"""Seconds after which a call that found no slot may be sent again."""

UNAUTHENTICATED_CALLS = 16
"""Messages read at once from unauthenticated clients; the oldest makes room for one more. A request
that needs no key fits one packet, so only clients that hold it back are closed."""

UNAUTHENTICATED_TIMEOUT = 1.0
"""Seconds for such a message."""

MAX_HEALTH_MESSAGE = 4096
"""Longest such message in bytes: it contains a name."""

_FIELD = 32
"""Bytes that a field of metadata counts beside its name and value (RFC 9113 §6.5.2)."""

_Code = grpc.StatusCode
_ServicerContext = Any


class ConnectionLimits:
    """Limits of open calls; `take` a slot for each new call."""

    def __init__(self, http: Server) -> None:
        self.http = http
        self.taken = 0
        self._unsent = 0
        """Bytes of gRPC's answers that are not read yet."""
        self.unauthenticated: dict[asyncio.Timeout, None] = {}
        """Messages being read from unauthenticated clients, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._head_bytes = http.limits.head_bytes

    def __repr__(self) -> str:
        return (
            f"<ConnectionLimits: {self.taken} calls, {len(self.unauthenticated)} unauthenticated>"
        )

    def take(self, context: _ServicerContext) -> "CallSlot":
        """Return a call's slot, to be used as a context manager; raise RefusedCall."""
        limits, address = self.http.limits, callers.address(context)
        most, per_address = limits.connections, limits.connections_per_address
        if self.taken >= most:
            self.http.reached("connections", most, f"a gRPC call of {address} is refused")
            raise _no_slot(f"{most} calls are open: limit reached")
        if per_address is not None and self._by_address[address] >= per_address:
            key = "connections_per_address"
            self.http.reached(key, per_address, f"a gRPC call of {address} is refused")
            raise _no_slot(f"{per_address} calls of one address are open: limit reached")
        if limits.head_bytes < self._head_bytes:  # otherwise gRPC has checked
            size = sum(len(k) + len(v) + _FIELD for k, v in context.invocation_metadata() or ())
            if size > limits.head_bytes:
                text = f"metadata of {size} bytes: larger than max ({limits.head_bytes})"
                raise RefusedCall(_Code.RESOURCE_EXHAUSTED, text)
        self.taken += 1
        self._by_address[address] += 1
        return CallSlot(self, context, address)

    def leave(self, address: str) -> None:
        """Release a slot."""
        self.taken -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def no_room(self, address: str, size: int) -> RefusedCall:
        """Return the refusal of a call whose message or answer exceeds the byte limit."""
        return _no_slot(self.http.no_room(address, size))

    def hold_answer(self, context: _ServicerContext, answer: GrpcResponse) -> GrpcResponse:
        """Count an answer until gRPC has sent it; return it, or a refusal if there is no room.

        gRPC sends no more than a client reads, and ends the call when it has sent everything.
        """
        http, size = self.http, len(answer.body)
        if size <= LARGE:
            return answer
        # Nothing bounds the time in which they are read, so half of the memory is not theirs.
        is_much = self._unsent and self._unsent + size > http.bounds.buffered_bytes // 2
        if is_much or (http.unsent and not http.make_room(size)):
            return self.no_room(callers.address(context), size).answer

        def sent(_: object) -> None:
            self._unsent -= size
            http.buffered -= size
            http.unsent -= size

        self._unsent += size
        http.buffered += size
        http.unsent += size
        context.add_done_callback(sent)
        return answer


class CallSlot:
    """The slot of one call: it is released when the block ends, however it ends."""

    __slots__ = ("_address", "_context", "_held", "_is_left", "_limits")

    def __init__(self, limits: ConnectionLimits, context: _ServicerContext, address: str) -> None:
        self._limits = limits
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
        """Read the call's message; raise RefusedCall, also if there is none."""
        found = await self.next_message()
        if found is None:
            raise _no_message()
        return found

    async def next_message(self) -> bytes | None:
        """Read the next message, None after the last; release the one before it."""
        self._hold(0)
        http = self._limits.http
        if http.buffered >= http.limits.buffered_bytes and not http.make_room(1):
            raise self._limits.no_room(self._address, 0)
        return self._admitted(await self._read(asyncio.timeout(http.limits.body_timeout)))

    async def unauthenticated_message(self) -> bytes:
        """Read the message of a client that needs no key; raise RefusedCall.

        It is not counted: such messages are few at a time, and short.
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
        """Count a message; raise RefusedCall if it, or the sum with all others, is too large."""
        http, size = self._limits.http, len(found or b"")
        if size > http.bounds.max_body_bytes:
            raise _too_large(size, http.bounds.max_body_bytes)
        if not http.make_room(size):
            # The newest request is refused, as over HTTP.
            raise self._limits.no_room(self._address, size)
        self._hold(size)
        return found

    def _hold(self, size: int) -> None:
        if self._is_left:  # a message that arrived while its stream ended
            return
        self._limits.http.buffered += size - self._held
        self._held = size


def _no_slot(text: str) -> RefusedCall:
    return RefusedCall(_Code.RESOURCE_EXHAUSTED, text, retry_after=RETRY)


def _too_large(size: int, most: int) -> RefusedCall:
    text = f"message of {size} bytes: larger than max ({most})"
    return RefusedCall(_Code.RESOURCE_EXHAUSTED, text)


def _no_message() -> RefusedCall:
    return bad_request("The call has no message")

"""A message connection to a worker; `actions` encodes the messages and decodes them."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from roma.device_protocol import (
    ActionResult,
    ClockOffset,
    Decoder,
    Message,
    Ping,
    Pong,
    Refused,
    encode,
)
from roma.domain.errors import BackendLost, WireError

T = TypeVar("T")


class Link(asyncio.Protocol):
    """A connection; `heard` is the time of the worker's last message, on our own clock.

    `on_result` takes results that nothing waits for; it raises WireError for invalid ones.
    """

    def __init__(
        self, on_result: Callable[[ActionResult], None], clock: Callable[[], float]
    ) -> None:
        self.offset = ClockOffset()
        self.heard = clock()
        self.why = "the connection was closed"
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_result = on_result
        self._clock = clock
        self._decoder = Decoder()
        self._transport: asyncio.Transport
        self._expected: asyncio.Future[Message] | None = None

    @property
    def is_over(self) -> bool:
        """True if nothing can be sent any more."""
        return self._transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take input; the connection ends if it is no message, or not a valid one now."""
        self.heard = self._clock()
        try:
            for message in self._decoder.feed(data):
                if self.is_over:
                    return
                self._on_message(message)
        except WireError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the waiter."""
        if exc is not None:
            self.why = f"the connection broke: {exc}"
        self.gone.set_result(None)
        if self._expected is not None and not self._expected.done():
            self._expected.set_exception(BackendLost(self.why))

    async def expect(self, kind: type[T], limit: float) -> T:
        """Return the next message, which must be of this kind; raises BackendLost or WireError."""
        self._expected = asyncio.get_running_loop().create_future()
        if self.gone.done():
            raise BackendLost(self.why)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation if the answer comes at the same
            # time.
            async with asyncio.timeout(limit):
                message = await self._expected
        except TimeoutError:
            raise BackendLost(f"no {kind.__name__} within {limit:g} s") from None
        finally:
            self._expected = None
        if not isinstance(message, kind):
            raise WireError(f"{type(message).__name__}: must be {kind.__name__} here")
        return message

    def send(self, message: Message) -> None:
        """Send a message; raises WireError or BackendLost, and then nothing is sent."""
        if self.is_over:  # uvloop raises what would end the program
            raise BackendLost(self.why)
        self._transport.writelines(encode(message))

    def ping(self) -> None:
        """Send a ping for the clock offset."""
        if not self.is_over:
            self.send(Ping(self._clock()))

    def end(self, why: str) -> None:
        """Close the connection now."""
        if not self.is_over:
            self.why = why
            self._transport.abort()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Pong):
            self.offset.add(message, self.heard)
        if isinstance(message, Refused):
            self.end(f"it refuses us: {message.reason}")
        elif self._expected is not None:
            if not self._expected.done():
                self._expected.set_result(message)
        elif isinstance(message, ActionResult):
            self._on_result(message)
        elif not isinstance(message, Pong):
            raise WireError(f"{type(message).__name__}: must not come now")

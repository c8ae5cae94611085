"""One connection to a worker, in messages; `actions` makes them and makes them anew."""

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
    """One connection; `heard` is when the worker said something last, on our own clock.

    `on_result` takes what nobody waits for; it raises WireError for what must not come.
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
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        """Take the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take what came; the connection ends if it is no message, or not one for now."""
        self.heard = self._clock()
        try:
            for message in self._decoder.feed(data):
                if self.is_over:
                    return
                self._on_message(message)
        except WireError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
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
            # Not wait_for: in Python 3.11 a cancellation is lost on it if the answer comes as well.
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
        """Send a message; raises WireError, and then nothing is sent."""
        self._transport.writelines(encode(message))

    def ping(self) -> None:
        """Ask for the time."""
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

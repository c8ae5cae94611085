"""One connection to the worker of an exclusive device, kept up: actions out, their results in.

It is made again whenever it breaks, and the device is asked anew what it is and what it holds:
nothing is remembered of a connection that is gone. Times are points on our own clock, in seconds;
what goes out is converted to the worker's, as its answers to pings tell how that differs.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from roma.actions import Action, Unload
from roma.actionwire import (
    Array,
    ClockOffset,
    Connect,
    Decoder,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Result,
    Submit,
    encode,
)
from roma.errors import BackendError, BackendLost, WireError
from roma.tokens import Token
from roma.watched import Watched

CONNECT_LIMIT: Final = 5.0
"""Seconds for a connection to come about."""

HELLO_LIMIT: Final = 30.0
"""Seconds for a worker to say what it has: what the one before left running ends first."""

PINGS: Final = 8
"""Questions for the time before the first action: the quickest answer counts."""

PERIOD: Final = 1.0
"""Seconds between two pings of a connection that is in use: clocks drift."""

SILENCE: Final = 10.0
"""Seconds without a word from a worker after which it is given up."""

PATIENCE: Final = (0.1, 2.0)
"""Shortest and longest seconds between two attempts to connect."""

STEADY: Final = 10.0
"""Seconds after which a connection counts as a good one: its end is no reason to wait longer."""

T = TypeVar("T")

log: Final = logging.getLogger(__name__)


class Owner(Protocol):
    """Whom a client tells."""

    def on_hello(self, hello: Hello) -> None:
        """Take what a worker has; raise WireError to refuse it. From now on it can be asked."""

    def on_result(self, result: Result) -> None:
        """Take a result; raise WireError if nobody asked for it."""

    def on_lost(self, why: str) -> None:
        """Take that there will be no more results; told once after each accepted Hello."""

    def overdue(self, now: float) -> str | None:
        """Return which answer should have come long ago, or None."""


class ActionClient:
    """Keeps one connection to the worker at `address`; `name` is who we are to it."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        owner: Owner,
        *,
        clock: Callable[[], float],
        token: Watched[Token] | None = None,
    ) -> None:
        self.address = address
        self._name = name
        self._owner = owner
        self._clock = clock
        self._token = token
        self._link: _Link | None = None
        self._said = ""

    def __repr__(self) -> str:
        state = "connected" if self._link is not None else "not connected"
        return f"<ActionClient of {self.address[0]}:{self.address[1]}: {state}>"

    async def run(self) -> None:
        """Connect, stay connected, and connect again; until cancelled."""
        shortest, wait = PATIENCE[0], PATIENCE[0]
        while True:
            begun = self._clock()
            try:
                await self._serve()
            except (BackendError, WireError) as error:
                self._complain(str(error))
            wait = shortest if self._clock() - begun > STEADY else min(2 * wait, PATIENCE[1])
            await asyncio.sleep(wait)

    def submit(self, action: Action, inputs: Mapping[str, Array] | None = None) -> bool:
        """Send an action; return whether it went out. Raises WireError for what cannot be sent."""
        link = self._link
        if link is None or link.is_over:
            return False
        link.send(Submit(_on_its_clock(action, link.offset), "", inputs or {}))
        return True

    def drop(self, why: str) -> None:
        """End this connection and make another one: what is known of the device is wrong."""
        if self._link is not None:
            self._link.end(why)
            self._lose(why)

    async def _serve(self) -> None:
        """Make a connection and look after it until it ends; raises why it did."""
        loop, (host, port) = asyncio.get_running_loop(), self.address
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                _, link = await loop.create_connection(
                    lambda: _Link(self._owner, self._clock), host, port
                )
        except (OSError, TimeoutError) as error:
            why = f"cannot connect to {host}:{port}: {str(error) or 'no answer'}"
            raise BackendLost(why) from None
        try:
            await self._greet(link)
            await self._look_after(link)
        finally:
            link.end("it is given up")

    async def _greet(self, link: "_Link") -> None:
        token = ""
        if self._token is not None:
            await asyncio.to_thread(self._token.look)
            token = self._token.value.text
        link.send(Connect(self._name, token))
        hello = await link.expect(Hello, HELLO_LIMIT)
        for _ in range(PINGS):
            link.ping()
            await link.expect(Pong, SILENCE)
        self._link = link
        try:
            self._owner.on_hello(hello)
        except BaseException:
            self._link = None
            raise
        self._said = ""

    async def _look_after(self, link: "_Link") -> None:
        try:
            while not link.is_over:
                await asyncio.wait([link.gone], timeout=PERIOD)
                now = self._clock()
                late = self._owner.overdue(now)
                if late is None and now - link.heard > SILENCE:
                    late = f"said nothing for {SILENCE:g} s"
                if late is not None:
                    link.end(late)
                link.ping()
        except asyncio.CancelledError:
            self._link = None  # nobody is to be told any more
            raise
        self._lose(link.why)

    def _lose(self, why: str) -> None:
        if self._link is not None:
            self._link = None
            self._owner.on_lost(why)

    def _complain(self, why: str) -> None:
        """Say once what keeps us from being connected, however often it is tried."""
        if why != self._said:
            self._said = why
            log.warning("worker at %s:%d: %s", *self.address, why)


class _Link(asyncio.Protocol):
    """One connection; `heard` is when the worker said something last."""

    def __init__(self, owner: Owner, clock: Callable[[], float]) -> None:
        self.offset = ClockOffset()
        self.heard = clock()
        self.why = "the connection was closed"
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._clock = clock
        self._decoder = Decoder()
        self._transport: asyncio.Transport
        self._expected: asyncio.Future[Message] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard = self._clock()
        try:
            for message in self._decoder.feed(data):
                if self.is_over:
                    return
                self._on_message(message)
        except WireError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
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
            message = await asyncio.wait_for(self._expected, limit)
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
        elif isinstance(message, Result):
            self._owner.on_result(message)
        elif not isinstance(message, Pong):
            raise WireError(f"{type(message).__name__}: must not come now")


def _on_its_clock(action: Action, offset: ClockOffset) -> Action:
    if isinstance(action, Unload):
        return action
    latest = action.latest if action.latest == math.inf else offset.to_worker(action.latest)
    return replace(action, earliest=offset.to_worker(action.earliest), latest=latest)

"""A connection to the worker of a planned device, kept open: actions out, results in.

It is reopened whenever it breaks, and the device is asked again for its capabilities and its
contents: nothing is remembered of a lost connection. Times are points on our own clock, in seconds.
Outgoing ones are converted to the worker's clock, whose offset is measured by pings.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from dispatcher.live.planned.link import Link
from roma.config.watched_file import Watched
from roma.device_protocol import ActionResult, Array, ClockOffset, Connect, Hello, Pong, Submit
from roma.domain.actions import Action, Discard, Unload
from roma.domain.errors import BackendError, BackendLost, WireError
from roma.security.tokens import Token
from roma.telemetry.reachability import reason

CONNECT_LIMIT: Final = 5.0
"""Seconds to establish a connection."""

HELLO_LIMIT: Final = 30.0
"""Seconds for a worker to report its contents: running actions of the previous connection end
first."""

PINGS: Final = 8
"""Pings before the first action: the quickest answer determines the clock offset."""

PERIOD: Final = 1.0
"""Seconds between two pings of a connection that is in use: clocks drift."""

SILENCE: Final = 3.0
"""Seconds without a message from a worker after which the connection is closed."""

PATIENCE: Final = (0.1, 2.0)
"""Shortest and longest seconds between two attempts to connect."""

STEADY: Final = 10.0
"""Seconds after which a connection counts as stable: its end does not lengthen the next wait."""


class ActionListener(Protocol):
    """Listener to a client's events."""

    def on_hello(self, hello: Hello) -> None:
        """Take a worker's contents; raise WireError to refuse it. It accepts actions now."""

    def on_result(self, result: ActionResult) -> None:
        """Take a result; raise WireError if it matches no action."""

    def on_lost(self, why: str) -> None:
        """Note that no more results will come; called once after each accepted Hello."""

    def on_unreachable(self, why: str) -> None:
        """Note why there is no connection; called after each attempt that failed."""

    def overdue(self, now: float) -> str | None:
        """Return the action whose answer is long overdue, or None."""


class ActionClient:
    """Keeps one connection to the worker at `address`; `name` is our name there."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        owner: ActionListener,
        *,
        clock: Callable[[], float],
        token: Watched[Token] | None = None,
    ) -> None:
        self.address = address
        self._name = name
        self._owner = owner
        self._clock = clock
        self._token = token
        self._link: Link | None = None

    def __repr__(self) -> str:
        state = "connected" if self._link is not None else "not connected"
        return f"<ActionClient of {self.address[0]}:{self.address[1]}: {state}>"

    async def run(self) -> None:
        """Connect, stay connected, and reconnect; until cancelled."""
        shortest, wait = PATIENCE[0], PATIENCE[0]
        while True:
            begun = self._clock()
            try:
                await self._serve()
            except (BackendError, WireError) as error:
                self._owner.on_unreachable(str(error))
            wait = shortest if self._clock() - begun > STEADY else min(2 * wait, PATIENCE[1])
            await asyncio.sleep(wait)

    def submit(self, action: Action, inputs: Mapping[str, Array] | None = None) -> bool:
        """Send an action; return True if it was sent. Raises WireError for invalid ones."""
        link = self._link
        if link is None or link.is_over:
            return False
        link.send(Submit(_on_its_clock(action, link.offset), "", inputs or {}))
        return True

    def drop(self, why: str) -> None:
        """Close this connection and open another one: our state of the device is wrong."""
        if self._link is not None:
            self._link.end(why)
            self._lose(why)

    async def _serve(self) -> None:
        """Open a connection and maintain it until it ends; raises the reason for its end."""
        loop, (host, port) = asyncio.get_running_loop(), self.address
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                _, link = await loop.create_connection(
                    lambda: Link(self._owner.on_result, self._clock), host, port
                )
        except (OSError, TimeoutError) as error:
            raise BackendLost(f"cannot connect to {host}:{port}: {reason(error)}") from None
        try:
            await self._greet(link)
            await self._look_after(link)
        finally:
            link.end("it is given up")

    async def _greet(self, link: "Link") -> None:
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
        except BaseException:  # refused, or a bug: it was never connected, so no loss is reported
            self._link = None
            raise

    async def _look_after(self, link: "Link") -> None:
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
            self._link = None  # nothing is reported any more
            raise
        self._lose(link.why)

    def _lose(self, why: str) -> None:
        if self._link is not None:
            self._link = None
            self._owner.on_lost(why)


def _on_its_clock(action: Action, offset: ClockOffset) -> Action:
    if isinstance(action, Unload | Discard):
        return action
    latest = action.latest if action.latest == math.inf else offset.to_device(action.latest)
    return replace(action, earliest=offset.to_device(action.earliest), latest=latest)

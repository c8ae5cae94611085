"""Questions that are asked in the background, between two ticks: usually a tick waits for none.

A tick that comes early has its question asked at once, and waits a little: without a reading it
could decide nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

EARLY: Final = 0.9
"""Share of a control period before which a tick is early."""

EARLY_WAIT: Final = 0.15
"""Share of a control period for which an early tick waits."""

LEAST_WAIT: Final = 0.11
"""Least seconds of that: a model server that has used up its quota answers in the next quota period
of 0.1 s. But no more than half a control period."""


class Asking:
    """Asks once after each tick, unless the last answer is still awaited.

    `period` is the control period in seconds, `at` the share of it between a tick and the question;
    `at_once`: the first tick asks immediately, too.
    """

    def __init__(
        self,
        ask: Callable[[], Coroutine[Any, Any, None]],
        *,
        period: float,
        at: float,
        at_once: bool = False,
    ) -> None:
        self._ask = ask
        self._period = period
        self._at = at
        self._at_once = at_once
        self._ticked_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.wait = min(max(EARLY_WAIT * period, LEAST_WAIT), period / 2)
        """Seconds that an early tick waits for answers."""

    def is_early(self, now: float) -> bool:
        """Return True if a tick at this time comes early."""
        return self._ticked_at is not None and now - self._ticked_at < EARLY * self._period

    def on_tick(self, now: float) -> None:
        """Begin at the first tick; raise the bug that has ended a question."""
        self._check()
        self._ticked_at = now
        if self._at_once:
            self._at_once = False
            self._begin()
        self._stop()
        due = now + self._at * self._period
        self._timer = asyncio.get_running_loop().call_at(due, self._begin)

    async def hasten(self) -> None:
        """Ask now if that is still to come; return when the question has ended, or after `wait`."""
        self._check()
        if self._timer is not None:
            self._stop()
            self._begin()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self.wait)

    async def close(self) -> None:
        """Stop asking."""
        self._stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _check(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()

    def _begin(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():  # one answer may take longer than a period
            self._task = asyncio.create_task(self._ask())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

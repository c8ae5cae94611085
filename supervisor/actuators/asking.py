"""Questions that are asked in the background, between two ticks: a tick waits for none."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from roma.telemetry.tasks import cancel


class Asking:
    """Asks once after each tick, unless it came early or the last answer is still awaited.

    `period` is the control period in seconds, `at` the share of it between a tick and the question,
    and between two questions at least;
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
        self._soonest = 0.0
        """Time of the next question at the earliest."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def on_tick(self, now: float) -> None:
        """Begin at the first tick; raise the bug that has ended a question."""
        if self._task is not None and self._task.done():
            self._task.result()
        if self._at_once:
            self._at_once = False
            self._begin()
        if self._timer is None:  # an early tick leaves the question for when it was due
            due = max(now + self._at * self._period, self._soonest)
            self._soonest = due + self._at * self._period
            self._timer = asyncio.get_running_loop().call_at(due, self._begin)

    async def close(self) -> None:
        """Stop asking."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await cancel([self._task])

    def _begin(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():  # one answer may take longer than a period
            self._task = asyncio.create_task(self._ask())

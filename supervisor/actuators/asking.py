"""Questions that are asked in the background, once a control period: a tick on time waits for none.

A tick that comes early, before the question of its period, has it asked at once and waits a little:
without a reading it could decide nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

EARLY_WAIT: Final = 0.15
"""Share of a control period for which an early tick waits. A model server that has used its quota
answers in the next quota period, 0.1 s later at most."""


class Asking:
    """Asks once per `period` seconds from the first tick on, or as often as there is an answer.

    `at` is the share of a period after a tick; `at_once`: the first tick is also a question.
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
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """True if the question of this period is still to come."""
        return self._timer is not None

    def on_tick(self, now: float) -> None:
        """Begin at the first tick; raise the bug that has ended a question."""
        if self._task is not None and self._task.done():
            self._task.result()
        if self._at_once:
            self._at_once = False
            self._begin()
        self._stop()
        due = now + self._at * self._period
        self._timer = asyncio.get_running_loop().call_at(due, self._begin)

    async def hasten(self) -> None:
        """Ask what is due now; return when that has ended, or after `EARLY_WAIT`."""
        self._stop()
        self._begin()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=EARLY_WAIT * self._period)

    async def close(self) -> None:
        """Stop asking."""
        self._stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():  # one answer may take longer than a period
            self._task = asyncio.create_task(self._ask())

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

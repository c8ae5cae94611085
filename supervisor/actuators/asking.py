"""Questions that are asked in the background, once a control period: a tick waits for none."""

import asyncio
import math
from collections.abc import Awaitable, Callable


class Asking:
    """Asks once per `period` seconds from the first tick on, or as often as there is an answer.

    `at` is the share of a period after a tick; a negative one also asks at once.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]], *, period: float, at: float) -> None:
        self._ask = ask
        self._period = period
        self._at = at
        self._task: asyncio.Task[None] | None = None

    def on_tick(self, now: float) -> None:
        """Begin at the first tick; raise the bug that has ended the questions."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(now + self._at * self._period))
        elif self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, due: float) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(due - clock())
            await self._ask()
            # One answer may take longer than a period.
            due += self._period * max(1, math.ceil((clock() - due) / self._period))

"""Lane of a device: one thread that executes work in order."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from roma.device.precise import tighten
from roma.telemetry.tasks import is_set_within

T = TypeVar("T")
Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]

_log = logging.getLogger(__name__)


class WorkThread:
    """A thread for blocking work; work submitted while it is busy waits in order."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        # A daemon, so that the process can end: a hanging kernel cannot be interrupted.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Start the thread; results are delivered on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def begin(self, work: Work, done: Done) -> None:
        """Run `work` in the thread, then call `done` with its value or error on the loop."""
        self._queue.put((work, done))

    @staticmethod
    def here(work: Work, done: Done) -> None:
        """Run `work` in the calling thread, then call `done`, as `begin` does."""
        done(*_outcome(work))

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and return its value, or raise its error."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(value: T, error: Exception | None) -> None:
            if not future.cancelled():
                future.set_result(value) if error is None else future.set_exception(error)

        self.begin(work, done)
        return await future

    async def stop(self, limit: float) -> bool:
        """Accept no more work; return whether submitted work ended within `limit` seconds."""
        self._queue.put(None)
        return await is_set_within(self._ended, limit)

    def _main(self) -> None:
        tighten()
        while (item := self._queue.get()) is not None:
            work, done = item
            self._tell(partial(done, *_outcome(work)))
            # A waiting thread must not hold the last batch in memory.
            del item, work, done
        self._tell(self._ended.set)

    def _tell(self, call: Callable[[], Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: the program did not wait for this lane
            _log.debug("a lane ended after its loop")


def _outcome(work: Work) -> tuple[Any, Exception | None]:
    """Return the value of `work` or its error: whatever a model does is its action's outcome."""
    try:
        return work(), None
    except Exception as error:  # a model's code may raise anything
        return None, error

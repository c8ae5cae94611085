"""Compute threads: a bounded pool; cancelled or late requests leave its queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from roma.serving.errors import Code, RequestError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ComputeThreads:
    """Pool of `count` threads: at most that many calls compute at once, others wait in order."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._futures: set[Future[Any]] = set()

    def __len__(self) -> int:
        """Return the number of calls that compute or wait."""
        return len(self._futures)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in a thread and return its result.

        If the caller is cancelled, work that has not begun never begins. Work that has begun runs
        to its end, because TensorFlow cannot be interrupted.
        """
        return await self.run_within(None, work, *args, **kwargs)

    async def run_within(
        self,
        seconds: float | None,
        work: Callable[_P, _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Run `work` as `run` does, unless it has not begun after `seconds` (None: no limit).

        Then RequestError with DEADLINE_EXCEEDED is raised. Work that begins in time runs to its
        end.
        """
        if seconds is not None and seconds <= 0:
            raise _late()
        # The pool keeps a cancelled future until a thread takes it; its request, which may be
        # large, is freed immediately.
        held = [partial(work, *args, **kwargs)]

        def take() -> _T:
            return held.pop()()

        future = self._pool.submit(take)
        self._futures.add(future)
        future.add_done_callback(lambda _: held.clear())
        future.add_done_callback(self._futures.discard)
        is_late = False

        def expire() -> None:
            nonlocal is_late
            is_late = future.cancel()

        loop = asyncio.get_running_loop()
        timer = None if seconds is None else loop.call_later(seconds, expire)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if is_late:
                raise _late() from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def stop(self) -> bool:
        """Accept no more work and drop waiting work; return whether a thread still computes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return any(future.running() for future in tuple(self._futures))


def _late() -> RequestError:
    text = "The request's time was over before a worker was free"
    return RequestError(text, Code.DEADLINE_EXCEEDED)

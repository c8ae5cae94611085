"""The threads that compute: a bounded pool, whose queue a cancelled request leaves."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers:
    """`count` threads; at most that many calls compute at once, the others wait in order."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._futures: set[Future[Any]] = set()

    def __len__(self) -> int:
        """How many calls compute or wait."""
        return len(self._futures)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in a thread and return its result.

        If the caller is cancelled, work that has not begun never does; work that has goes on to
        its end, because TensorFlow cannot be interrupted.
        """
        future = self._pool.submit(work, *args, **kwargs)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return await asyncio.wrap_future(future)

    def stop(self) -> bool:
        """Take no more work and forget what waits; return whether a thread is still computing."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return any(future.running() for future in tuple(self._futures))

"""Tasks of a program that end together, with a block, another or a signal; waits with a limit."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")

LOOK = 0.02
"""Seconds between two looks at a condition."""


@contextlib.asynccontextmanager
async def background(work: Coroutine[object, object, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` beside the block; when that ends, cancel it and wait until it has ended."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancel([task])


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these, and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def until_one_ends(*works: Awaitable[object]) -> None:
    """Return when one of these has ended, and raise the bug that ended it; cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(tasks)
    for task in done:
        task.result()


async def until(condition: Callable[[], bool], limit: float) -> None:
    """Wait until a condition holds, but not longer than `limit` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(LOOK)


async def is_set_within(event: asyncio.Event, limit: float) -> bool:
    """Wait until an event is set, but not longer than `limit` seconds; return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await event.wait()
    return event.is_set()


async def to_end(work: Coroutine[object, object, Result]) -> Result:
    """Return what `work` returns; a caller that is cancelled waits until it has ended."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets from now on."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    return stop

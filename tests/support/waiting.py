"""Waiting for what another task, thread or process does."""

import asyncio
import contextlib


async def until(condition, limit=60.0):
    """Return once the condition holds; the limit only bounds a failing test."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def beside(coroutine):
    """Run a coroutine until the block ends; yield its task."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

"""Tasks that run beside a block and end with it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def background(work: Coroutine[object, object, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` beside the block; when that ends, cancel it and wait until it has ended."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

"""Waiting for what another task, thread or process does."""

import asyncio


async def until(condition, limit=60.0):
    """Return once the condition holds; the limit only bounds a failing test."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.005)

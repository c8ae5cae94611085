"""Blocking calls beside the event loop, in threads that hold up no program's end."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(call: Callable[[], Result]) -> Result:
    """Return what a blocking call returns; a cancelled caller leaves it to end by itself.

    `asyncio.to_thread` would make the end of the program wait for an image that is on its way.
    """
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)

"""The pool of threads: what waits can leave, what computes cannot."""

import asyncio
import gc
import threading
import weakref
from contextlib import contextmanager

import pytest

from roma.serving.errors import Code, RequestError
from roma.serving.workers import ComputeThreads
from tests.support.waiting import until


class Body:
    """Stands for a large request."""


@contextmanager
def busy():
    """A worker that computes until the block ends; yields it and the event of its begin."""
    workers, begun, end = ComputeThreads(1, "test"), threading.Event(), threading.Event()

    def work():
        begun.set()
        assert end.wait(60)
        return "done"

    try:
        yield workers, begun, work
    finally:
        end.set()
        workers.stop()


async def test_a_cancelled_request_is_forgotten_at_once():
    with busy() as (workers, begun, work):
        first = asyncio.ensure_future(workers.run(work))
        await until(begun.is_set)
        body = Body()
        gone = weakref.ref(body)
        second = asyncio.ensure_future(workers.run(id, body))
        await until(lambda: len(workers) == 2)
        del body
        second.cancel()
        await asyncio.wait({second})
        assert second.cancelled()
        del second
        gc.collect()
        # The thread has not taken it up yet, and its body is gone all the same.
        assert (len(workers), gone()) == (1, None)
    assert await first == "done"


async def test_the_time_bounds_the_wait_and_not_the_work(monkeypatch):
    loop, timers = asyncio.get_running_loop(), []
    monkeypatch.setattr(loop, "call_later", lambda _, expire: timers.append(expire) or Timer())
    with busy() as (workers, begun, work):
        first = asyncio.ensure_future(workers.run_within(5.0, work))
        second = asyncio.ensure_future(workers.run_within(5.0, work))
        for _ in range(2):
            await asyncio.sleep(0)
        monkeypatch.undo()
        await until(begun.is_set)
        for expire in timers:
            expire()
        with pytest.raises(RequestError, match="time was over before a worker was free") as late:
            await second
        assert late.value.code is Code.DEADLINE_EXCEEDED
        assert not first.done()
    assert await first == "done"


class Timer:
    def cancel(self):
        pass


async def test_no_time_at_all_asks_no_thread():
    with busy() as (workers, begun, work):
        with pytest.raises(RequestError, match="time was over"):
            await workers.run_within(0.0, work)
        assert (len(workers), begun.is_set()) == (0, False)

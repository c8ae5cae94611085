"""Let the event loop sleep between two callbacks, at random, in every test.

`PYTHONPATH=tools STALLS=SEED pytest -p loop_stalls --numprocesses 8 …`. A sleep of 0.05 to 1.3 s
comes where another task, a timer or a deadline may come first, which a stall of the CPUs
(`tools/stalls.py`) hits by luck. They get rarer as a test goes on, and need no CPU: more processes
than CPUs are fine. A test that fails then depends on time.
"""

import asyncio
import os
import random
import time
from asyncio import base_events
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import pytest
import uvloop

SHORTEST, LONGEST = 0.05, 1.3
FIRST = 40.0
"""Mean number of turns of the loop before the first sleep of a test."""
RARER = 1.35
"""Factor of that mean from each sleep to the next."""

T = TypeVarTuple("T")

# A turn of the loop has no public name, so typeshed has none.
_turn: Callable[[base_events.BaseEventLoop], None] = base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]


class Sleeper:
    """When to sleep next in the test that runs."""

    def __init__(self) -> None:
        self.turns = float("inf")

    def begin(self, seed: str) -> None:
        """Draw anew, for a test."""
        self.draw, self.mean = random.Random(seed), FIRST
        self.turns = self.draw.expovariate(1 / self.mean)

    def end(self) -> None:
        """Sleep no more."""
        self.turns = float("inf")

    def turn(self) -> None:
        """Count a turn of the loop, or a callback; sleep if it is time."""
        self.turns -= 1
        if self.turns <= 0:
            time.sleep(self.draw.uniform(SHORTEST, LONGEST))
            self.mean *= RARER
            self.turns = self.draw.expovariate(1 / self.mean)


sleeper = Sleeper()


class UvLoop(uvloop.Loop):
    """uvloop's has no turns to count: it sleeps where a callback is added."""

    def call_soon(
        self, callback: Callable[[*T], object], *args: *T, context: Context | None = None
    ) -> asyncio.Handle:
        """Add a callback."""
        sleeper.turn()
        return super().call_soon(callback, *args, context=context)


def _run_once(loop: base_events.BaseEventLoop) -> None:
    sleeper.turn()
    _turn(loop)


def pytest_configure() -> None:
    """Put both loops in the place of asyncio's and uvloop's."""
    if "STALLS" not in os.environ:
        raise pytest.UsageError("STALLS is not set: it is the seed, any text")
    base_events.BaseEventLoop._run_once = _run_once  # type: ignore[attr-defined] # as above
    uvloop.new_event_loop = UvLoop


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Begin with the test, not with its fixtures."""
    sleeper.begin(os.environ["STALLS"] + item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """End with it."""
    sleeper.end()

"""Reading through an engine, in virtual time: fresh, counted once, and never waited for."""

import asyncio

import pytest

from roma.domain.errors import ActuationError, EngineError
from supervisor.actuators.asking import Asking
from supervisor.actuators.meters import EngineMeters
from supervisor.executables import Reading

pytestmark = pytest.mark.looptime


class Engine:
    """Takes `delays` to answer, one after the other, then no time; `failing` counts questions."""

    def __init__(self, *delays, failing=()):
        self.delays = list(delays)
        self.failing = failing
        self.asked = []

    async def readings(self):
        clock = asyncio.get_running_loop().time
        self.asked.append(clock())
        await asyncio.sleep(self.delays.pop(0) if self.delays else 0)
        if len(self.asked) in self.failing:
            raise EngineError("no engine")
        return {"m@w": Reading(1.0, clock(), 0, 0), "n@w": ActuationError("does not run")}


async def ticks(engine, count):
    """Return the usage and the age of what each tick reads; usage is the time it was read at."""
    meters, seen = EngineMeters(engine, ["m@w", "n@w"], period=1.0), []
    for _ in range(count):
        found = await meters.read()
        assert found["n@w"] is None
        reading = found["m@w"]
        seen.append(None if reading is None else (reading.usage, reading.age))
        await asyncio.sleep(1)
    await meters.close()
    return seen


@pytest.mark.parametrize(
    ("delays", "seen", "asked"),
    [
        # What a tick reads is a quarter of a period old.
        ((), [None, (0.75, 0.25), (1.75, 0.25), (2.75, 0.25)], [0.75, 1.75, 2.75, 3.75]),
        # A slow engine is asked on the grid all the same.
        ((0.5, 0.5, 0.5), [None, None, (1.25, 0.75), (2.25, 0.75)], [0.75, 1.75, 2.75, 3.75]),
        # One that is slower than ticks is asked as often as it answers.
        (
            (1.5, 1.5, 1.5),
            [None, None, None, (2.25, 0.75), None, (4.25, 0.75)],
            [0.75, 2.75, 4.75],
        ),
    ],
)
async def test_an_engine_is_asked_a_quarter_of_a_period_before_a_tick(
    looptime, delays, seen, asked
):
    engine = Engine(*delays)
    assert await ticks(engine, len(seen)) == seen
    assert engine.asked == asked
    assert looptime == len(seen)


async def test_who_is_closed_asks_no_more():
    engine = Engine()
    await ticks(engine, 3)
    await asyncio.sleep(10)
    assert engine.asked == [0.75, 1.75, 2.75]


async def test_a_failure_is_no_reading_and_said_once(caplog):
    engine = Engine(failing={2, 3})
    seen = await ticks(engine, 5)
    assert seen == [None, (0.75, 0.25), None, None, (3.75, 0.25)]
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        "executable n@w: its CPU use is unknown: does not run",
        "executable m@w: its CPU use is unknown: no engine",
    ]


async def test_a_tick_that_comes_early_leaves_the_question_for_when_it_was_due():
    clock, asked = asyncio.get_running_loop().time, []

    async def ask():
        asked.append(clock())

    asking = Asking(ask, period=1.0, at=0.5, at_once=True)
    for _ in range(6):
        asking.on_tick(clock())
        await asyncio.sleep(0.3)
    assert asked == pytest.approx([0.0, 0.5, 1.1, 1.7])
    await asking.close()


@pytest.mark.parametrize("at", [0.5, 0.75])
async def test_after_an_early_tick_questions_keep_their_distance_from_the_next(at):
    clock, asked, ticks = asyncio.get_running_loop().time, [], [0.0, 1.0, 1.8, 2.8, 3.8]

    async def ask():
        asked.append(clock())

    asking = Asking(ask, period=1.0, at=at)
    for tick in ticks:
        await asyncio.sleep(tick - clock())
        asking.on_tick(clock())
    assert asked[-2:] == pytest.approx([1.8 + at, 2.8 + at])
    await asking.close()

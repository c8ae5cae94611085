"""The one-second loop in virtual time: a grid of ticks, none caught up, nothing that stops it."""

import asyncio
from dataclasses import replace

import pytest

from controllers import registry
from roma.domain.errors import ActuationError, ExchangeError
from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import ModelSpec, Sla
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading
from supervisor.live.loop import ControlLoop

pytestmark = pytest.mark.looptime


class Kernel:
    """An actuator in virtual time; `slow` maps a tick's number to seconds it takes."""

    def __init__(self, slow=None, failing=()):
        self.cores = 1.0
        self.ticks = []
        self.slow = slow or {}
        self.failing = failing

    async def read(self):
        self.ticks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.slow.get(len(self.ticks), 0))
        return {"m@w": Reading(self.cores, 0.0, 0, 0)}

    async def apply(self, cores):
        if len(self.ticks) in self.failing:
            return {name: ActuationError("denied") for name in cores}
        self.cores = cores.get("m@w", self.cores)  # asked for nothing: a sign of life
        return dict(cores)


class Dispatcher:
    """A peer that answers, unless told to be silent at a tick; cores are needed at `needs_at`."""

    url = "http://d"

    def __init__(self, silent=(), needs_at=()):
        self.needs_at = list(needs_at)
        self.asked = 0
        self.silent = silent
        self.confirmed = []

    async def report(self, worker):
        assert worker == "w"
        self.asked += 1
        if self.asked in self.silent:
            raise ExchangeError("no answer")
        return ExchangeReply("e", (), (ExecutorReport("m@w", "idle", 0, 0),))

    async def needs(self, worker):
        assert worker == "w"
        if not self.needs_at:
            return None  # as an older one
        await asyncio.sleep(self.needs_at.pop(0) - asyncio.get_running_loop().time())
        return True

    async def confirm(self, message):
        self.confirmed.append([r.applied for r in message.executors])


def build(kernel, dispatcher):
    managed = [Managed("m@w", ModelSpec("m", Sla(0.5), 1.0), 0.1, 4.0, initial=1.0)]
    core = Supervisor(managed, registry.build("static", {"level": "max"}), capacity=4.0)
    return ControlLoop(
        core, kernel, [dispatcher], worker="w", period=1.0, decides_early=bool(dispatcher.needs_at)
    )


async def run_for(loop, seconds):
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()


async def test_ticks_stand_on_a_grid_of_one_period(looptime):
    kernel = Kernel()
    loop = build(kernel, Dispatcher())
    await run_for(loop, 5.5)
    assert kernel.ticks == [0, 1, 2, 3, 4, 5]
    assert max(loop.jitters) == 0
    assert looptime == 5.5


async def test_a_tick_comes_early_where_cores_are_needed(looptime):
    kernel = Kernel()
    # Once a tenth of a second after a tick, the soonest; once just before the tick is due.
    loop = build(kernel, Dispatcher(needs_at=[1.5, 1.6, 2.8, 3.79]))
    await run_for(loop, 6.5)
    assert kernel.ticks == pytest.approx([0, 1, 1.5, 1.6, 2.6, 2.8, 3.79, 4.79, 5.79])
    assert loop.missed == 0
    assert max(loop.jitters) == pytest.approx(0)


@pytest.mark.parametrize(("seconds", "early"), [(0.05, 2.2), (0.3, 2.6)])
async def test_a_tick_that_takes_long_rests_as_long_before_the_next_early_one(seconds, early):
    kernel = Kernel(slow={3: seconds})
    await run_for(build(kernel, Dispatcher(needs_at=[2.2])), 2.8)
    assert kernel.ticks == pytest.approx([0, 1, 2, early])


async def test_what_was_applied_before_an_executable_was_controlled_counts():
    """An actuator tells once, of a pod that it has found before the core."""

    class Pods(Kernel):
        async def read(self):
            found = await super().read()
            return {**found, "n@w": None, "gone@w": None} if before else found

        async def apply(self, cores):
            await super().apply(cores)
            return {"n@w": 0.7, "gone@w": 0.7} if len(self.ticks) == 2 else {}

    before = True
    loop = build(Pods(), Dispatcher())
    ticking = asyncio.create_task(loop.run())
    await asyncio.sleep(3.5)
    assert loop._early.keys() == {"n@w", "gone@w"}
    (first,) = [status.managed for status in loop.core.status.values()]
    await loop.follow([first, replace(first, name="n@w")])
    await asyncio.sleep(0.5)
    assert loop.core.status["n@w"].applied == 0.7
    before = False  # what is neither controlled nor read any more is forgotten
    await asyncio.sleep(1)
    assert not loop._early
    ticking.cancel()


async def test_missed_ticks_are_skipped_never_caught_up(looptime):
    kernel = Kernel(slow={2: 2.5})  # the tick at 1 s ends at 3.5 s
    loop = build(kernel, Dispatcher())
    await run_for(loop, 6.5)
    assert kernel.ticks == [0, 1, 4, 5, 6]
    assert loop.missed == 2


async def test_what_was_applied_is_confirmed_in_the_same_tick(looptime):
    dispatcher = Dispatcher()
    loop = build(Kernel(), dispatcher)
    await run_for(loop, 2.5)
    assert dispatcher.confirmed == [[1.0], [4.0], [4.0]]


async def test_the_loop_outlives_a_silent_dispatcher_and_a_failing_actuator(looptime):
    kernel, dispatcher = Kernel(failing={2, 3}), Dispatcher(silent={5, 6})
    loop = build(kernel, dispatcher)
    await run_for(loop, 8.5)
    assert len(kernel.ticks) == 9
    assert kernel.cores == 4.0
    assert loop.core.status["m@w"].failures == 2


async def test_each_reason_of_a_silence_is_logged_once(caplog):
    class Starting(Dispatcher):
        """A dispatcher whose certificate is another's, once it listens."""

        async def report(self, worker):
            await super().report(worker)
            refused = self.asked in (1, 3, 7)
            raise ExchangeError("connection refused" if refused else "not for this name")

    await run_for(build(Kernel(), Starting()), 8.5)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["holding: connection refused", "holding: not for this name"]


async def test_a_dispatcher_that_refuses_what_was_applied_is_logged_once_until_it_does_not(caplog):
    """A dispatcher that was started again with another file knows no such worker."""

    class Other(Dispatcher):
        async def confirm(self, message):
            await super().confirm(message)
            if len(self.confirmed) != 4:
                raise ExchangeError("http://d: status 404: worker = w: must be one of v")

    await run_for(build(Kernel(), Other()), 8.5)
    assert caplog.text.count("not confirmed: http://d: status 404") == 2


async def test_models_change_between_two_ticks_and_never_within_one(looptime):
    first, second = Kernel(slow={3: 0.5}), Kernel()
    loop = build(first, Dispatcher())
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(2.2)  # the tick at 2 s is reading
    spec = ModelSpec("n", Sla(0.5), 1.0)
    follow = loop.follow([Managed("n@w", spec, 0.1, 4.0, initial=1.0)], second)
    await follow
    assert asyncio.get_running_loop().time() == 3
    assert first.ticks == [0, 1, 2]
    await asyncio.sleep(1.5)
    assert second.ticks == [3, 4]
    assert list(loop.core.status) == ["n@w"]
    running.cancel()

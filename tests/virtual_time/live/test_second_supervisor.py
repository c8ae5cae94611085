"""A supervisor whose worker is another one's, in virtual time: it waits, and ends."""

import asyncio

import pytest

from roma.domain.errors import TakenError
from roma.domain.exchange import silence
from supervisor.live.peer import WorkerHeld
from tests.virtual_time.live.test_loop_time import Dispatcher, Kernel, build

pytestmark = pytest.mark.looptime


class Held(Dispatcher):
    """A dispatcher that hears another supervisor until `free` seconds."""

    def __init__(self, free):
        super().__init__()
        self.free = free

    async def confirm(self, message):
        if asyncio.get_running_loop().time() < self.free:
            raise WorkerHeld("http://d: worker = w: its supervisor is process 7 of host h")
        await super().confirm(message)


async def test_it_touches_nothing_and_ends_with_the_other_s_name(looptime):
    kernel = Kernel()
    loop = build(kernel, Held(free=1e9))
    with pytest.raises(TakenError, match=r"worker w: .*process 7 of host h"):
        await loop.introduce()
    assert kernel.ticks == []
    assert looptime == 2 * silence(1.0)


async def test_it_waits_for_one_that_has_ended(looptime):
    loop = build(Kernel(), Held(free=silence(1.0)))
    await loop.introduce()
    assert looptime == silence(1.0)


class Taken(Dispatcher):
    """A dispatcher that listens to the first supervisor it hears, and is nearer to one of them."""

    def __init__(self, near):
        super().__init__()
        self.near = near
        self.holder = None

    async def confirm(self, message):
        await asyncio.sleep(0.01 if message.worker == self.near else 0.02)
        if self.holder not in (None, message.worker):
            raise WorkerHeld(f"http://d: its supervisor is {self.holder}")
        self.holder = message.worker


async def test_of_two_that_start_together_one_has_every_dispatcher(looptime):
    dispatchers = [Taken("one"), Taken("other")]
    loops = [build(Kernel(), dispatchers[0]) for _ in range(2)]
    for loop, name in zip(loops, ("one", "other"), strict=True):
        loop._peers, loop.worker = dispatchers, name
    results = await asyncio.gather(*(loop.introduce() for loop in loops), return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], TakenError)
    assert [d.holder for d in dispatchers] == ["one", "one"]


async def test_without_a_dispatcher_it_goes_on(looptime):
    from roma.domain.errors import ExchangeError

    class Gone(Dispatcher):
        async def confirm(self, message):
            raise ExchangeError("nobody answers")

    await build(Kernel(), Gone()).introduce()
    assert looptime == 0


async def test_one_that_loses_its_worker_later_ends_too(looptime):
    dispatcher = Held(free=0)
    loop = build(Kernel(), dispatcher)
    await loop.introduce()
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(3.5)
    dispatcher.free = 1e9
    with pytest.raises(TakenError):
        await running
    assert looptime == 4 + 2 * silence(1.0)

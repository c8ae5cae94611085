"""What the loop writes down, in real time: a thread of its own writes it."""

import asyncio
import json

from roma.telemetry.decision_log import DecisionLog
from tests.support.decision_log import lines
from tests.virtual_time.live.test_loop_time import Dispatcher, Kernel, build


async def test_every_decision_is_written_down_once_and_the_last_one_too(tmp_path):
    loop = build(Kernel(), Dispatcher())
    loop.period = 0.05
    loop._decision_log = DecisionLog(tmp_path)
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(20):
        while loop.ticks < 5:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    told = [json.loads(line) for line in lines(tmp_path, "decisions-w")]
    times = [line["time"] for line in told]
    assert times == sorted(set(times))
    assert times[-1] == loop.core.last()[0].time
    assert told[-1]["observed"] is None
    assert told[0]["observed"] == 1.0
    assert {(line["worker"], line["executable"]) for line in told} == {("w", "m@w")}

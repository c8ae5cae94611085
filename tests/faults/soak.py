"""`python -m tests.faults.soak MINUTES`: load and faults for long, and what is left of the memory.

Two stand-ins, 70 % of what they can do, and every few seconds another fault, in turn. It fails, and
writes nothing, if a request was lost or computed twice, if counters disagree, if descriptors leak,
or if the dispatcher's memory grew by GROWTH or more after warming up.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from roma.load import Load, Stream
from roma.load.client import RestClient
from tests.faults.drive import Steady, as_counted
from tests.support.ground import Ground, paused

PAGE = Path(__file__).parents[2] / "docs/soak.md"

WAIT = 0.04
"""Seconds that a stand-in takes for a request: little to compute, on a machine that others use."""

CORES = 2
SERVERS = 2
RATE = 0.7 * SERVERS * CORES / (WAIT + 0.001)
EVERY = 10.0
"""Seconds from one fault to the next."""

LOOK = 2.0
WARM = 1 / 3
"""Share of the run in which memory may grow: pools, caches and a quarter of an hour of history
fill."""

GROWTH = 0.01
CALM = 20
"""Looks at each end of what is compared, at most."""


async def killed(ground):
    ground.server.kill()
    await asyncio.sleep(1)
    ground.start_server()


async def paused_for_a_while(ground):
    async with paused(ground.servers[1]):
        await asyncio.sleep(3)


async def uncontrolled(ground):
    ground.supervisor.kill()
    await asyncio.sleep(2)
    ground.supervisor.start()


def misbehaving(how):
    async def strike(ground):
        ground.server.say(how)
        await asyncio.sleep(2)
        ground.server.say("answer")

    return strike


async def dropped(ground):
    for server in ground.servers:
        server.say("drop")


FAULTS = {
    "an executable killed, restarted after 1 s": killed,
    "an executable paused for 3 s": paused_for_a_while,
    "all connections to executables dropped": dropped,
    "garbage for 2 s": misbehaving("garbage"),
    "status 500 for 2 s": misbehaving("error"),
    "silence for 2 s": misbehaving("silence"),
    "the supervisor killed, restarted after 2 s": uncontrolled,
}


@dataclass(frozen=True)
class Sample:
    """One look: seconds since the start, bytes of memory, open descriptors."""

    at: float
    memory: int
    descriptors: int


async def soak(directory, seconds):
    """Run it; return the load's report, the samples, and how many faults there were."""
    async with Ground(
        directory, servers=SERVERS, cores=CORES, in_flight=CORES, deadline=2.0, controlled=True
    ) as ground:
        for server in ground.servers:
            server.say(f"wait {WAIT}")
        async with RestClient(ground.url) as client:
            steady = Steady(RATE, int(RATE * seconds))
            stream = Stream("m", steady, lambda index: b'{"instances": ["%d"]}' % index)
            running = asyncio.create_task(Load([stream], client).run())
            others = [asyncio.create_task(_strike(ground)), asyncio.create_task(_look(ground))]
            try:
                done, _ = await asyncio.wait(
                    [running, *others], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                report = await running
            finally:
                for task in others:
                    task.cancel()
                struck, samples = await asyncio.gather(*others, return_exceptions=True)
        assert not ground.gateway.ended, ground.tail()
        await _check(ground, report.total)
        # The clients have gone; connections to executables may stay.
        most = samples[0].descriptors + 2 * CORES * SERVERS
        await ground.until(lambda: ground.gateway.descriptors() <= most)
        return report.total, samples, struck


async def _strike(ground):
    struck = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            for fault in FAULTS.values():
                await asyncio.sleep(EVERY)
                await fault(ground)
                struck += 1
    return struck


async def _look(ground):
    began, samples = time.monotonic(), []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(LOOK)
            gateway = ground.gateway
            at = time.monotonic() - began
            samples.append(Sample(at, gateway.memory(), gateway.descriptors()))
    return samples


async def _check(ground, total):
    assert total.lost == total.invalid == 0, total
    assert max(ground.computed().values()) == 1
    expected = as_counted(total.statuses, total.reasons)
    await ground.until(lambda: sum(ground.outcomes().values()) >= sum(expected.values()))
    assert +ground.outcomes() == +expected, (ground.outcomes(), expected)


def growth(samples):
    """Return by which share the memory grew, from warm to the end: medians of looks."""
    warm = samples[int(len(samples) * WARM) :]
    few = max(1, min(CALM, len(warm) // 4))
    first, last = (median(s.memory for s in part) for part in (warm[:few], warm[-few:]))
    return last / first - 1


def page(seconds, total, samples, struck):
    """Return the document."""
    faults = "\n".join(f"- {name}" for name in FAULTS)
    tenths = [samples[i * (len(samples) - 1) // 10] for i in range(11)]
    rows = "\n".join(
        f"| {s.at / 60:.1f} | {s.memory / 2**20:.2f} | {s.descriptors} |" for s in tenths
    )
    times = total.response_time.percentiles
    return f"""\
# A long run with faults

Written by `make soak` (`MINUTES=30` by default), which fails unless all of this holds: every request
has one end, none was computed twice, `/metrics` agrees with the clients, and from warm (after a third
of the run) to the end the dispatcher's memory grew by less than {GROWTH:.0%}.

This run: **{seconds / 60:g} minutes** at {RATE:.0f} req/s, {RATE * (WAIT + 0.001) / SERVERS / CORES:.0%} of what the
{SERVERS} stand-in model servers can do, and {struck} faults, one {EVERY:g} s after the other:

{faults}

| sent | answered | refused | failed | response time p50 | p99 |
|---|---|---|---|---|---|
| {total.sent:,} | {total.answered:,} | {total.rejected:,} | {total.failed:,} | {times["p50"] * 1000:.0f} ms | {times["p99"] * 1000:.0f} ms |

Growth of the dispatcher's memory (RSS) after warm-up: **{growth(samples):+.2%}**.

| minute | RSS, MiB | descriptors |
|---|---|---|
{rows}
"""


def main():
    """Run for the minutes that the command line says."""
    seconds = 60 * float(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="roma-soak-") as directory:
        total, samples, struck = asyncio.run(soak(Path(directory), seconds))
    text = page(seconds, total, samples, struck)
    sys.stdout.write(text)
    assert growth(samples) < GROWTH, growth(samples)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

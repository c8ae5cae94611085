"""`python -m tests.system.faults.soak MINUTES`: load, faults and hostile clients, and what is left of them.

Two stand-ins, 42 % of what they can do, two fifths of all requests from hostile clients, and every
few seconds another fault, in turn. It ends with status 1, and writes nothing, if a request was lost
or computed twice, if counters disagree, if a hostile client saw what it should not, or if after
warming up, at equal load, the dispatcher's memory grew by GROWTH or more or its descriptors changed.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from roma.tools.load import LoadRun, Stream
from roma.tools.load.client import RestClient
from tests.support.deployment import Deployment, paused
from tests.system.faults.fault_runner import Steady, as_counted
from tests.system.faults.hostile import MODEL, TIMEOUTS, Hostile, surprises

PAGE = Path(__file__).parents[3] / "docs/soak.md"

WAIT = 0.04
"""Seconds that a stand-in takes for a request: little to compute, on a machine that others use."""

CORES = 2
SERVERS = 2
RATE = 0.7 * SERVERS * CORES / (WAIT + 0.001)
"""Requests per second in all."""

HOSTILE = 0.4
"""Share of them that hostile clients send."""

BURST = 30.0
"""Seconds at first in which these are three times as many."""

EVERY = 10.0
"""Seconds from one fault to the next."""

LOOK = 2.0
WARM = 300.0
"""Seconds in which memory may grow, or a third of a shorter run: pools and caches fill."""

SPREAD = 5
"""Descriptors by which the fewest of two stretches may differ: what else is open are clients, who
stay longer on a busy machine. A leak of one per fault would be 150 in half an hour."""

GROWTH = 0.01
CALM = 60
"""Looks at each end of what is compared, at most."""


async def killed(deployment):
    deployment.server.kill()
    await asyncio.sleep(1)
    deployment.start_server()


async def paused_for_a_while(deployment):
    async with paused(deployment.servers[1]):
        await asyncio.sleep(3)


async def uncontrolled(deployment):
    deployment.supervisor.kill()
    await asyncio.sleep(2)
    deployment.supervisor.start()


def misbehaving(how):
    async def strike(deployment):
        deployment.server.say(how)
        await asyncio.sleep(2)
        deployment.server.say("answer")

    return strike


async def dropped(deployment):
    for server in deployment.servers:
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
    """A look: seconds since the start, bytes of memory, open descriptors."""

    at: float
    memory: int
    descriptors: int


async def soak(directory, seconds):
    """Run it; return the load's report, the samples, and how many faults there were."""
    async with Deployment(
        directory,
        servers=SERVERS,
        cores=CORES,
        in_flight=CORES,
        deadline=2.0,
        controlled=True,
        beside=(MODEL,),
        gateway={"limits": TIMEOUTS},
    ) as deployment:
        for server in deployment.servers:
            server.say(f"wait {WAIT}")
        async with RestClient(deployment.url) as client:
            rate, hostile = RATE * (1 - HOSTILE), Hostile(deployment.port, RATE * HOSTILE, BURST)
            steady = Steady(rate, int(rate * seconds))
            stream = Stream("m", steady, lambda index: b'{"instances": ["%d"]}' % index)
            running = asyncio.create_task(LoadRun([stream], client).run())
            others = [asyncio.create_task(act) for act in (_strike(deployment), _look(deployment))]
            attacking = asyncio.create_task(hostile.run())
            try:
                done, _ = await asyncio.wait(
                    [running, attacking, *others], return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                report = await running
            finally:
                for task in (attacking, *others):
                    task.cancel()
                struck, samples, _ = await asyncio.gather(
                    *others, attacking, return_exceptions=True
                )
        assert not deployment.gateway.ended, deployment.tail()
        await _check(deployment, report.total)
        assert not surprises(hostile.ends), surprises(hostile.ends)
        # The clients have gone; connections to executables may stay.
        most = samples[0].descriptors + 2 * CORES * SERVERS
        await deployment.until(lambda: deployment.gateway.descriptors() <= most)
        return report.total, samples, struck, hostile.ends


async def _strike(deployment):
    struck = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            for fault in FAULTS.values():
                await asyncio.sleep(EVERY)
                await fault(deployment)
                struck += 1
    return struck


async def _look(deployment):
    began, samples = time.monotonic(), []
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(LOOK)
            gateway = deployment.gateway
            at = time.monotonic() - began
            samples.append(Sample(at, gateway.memory(), gateway.descriptors()))
    return samples


async def _check(deployment, total):
    assert total.lost == total.invalid == 0, total
    assert max(deployment.computed().values()) == 1
    expected = as_counted(total.statuses, total.reasons)
    await deployment.until(lambda: sum(deployment.outcomes().values()) >= sum(expected.values()))
    assert +deployment.outcomes() == +expected, (deployment.outcomes(), expected)


def grown(samples):
    """Return by which share the memory grew, and by how many the descriptors, from warm to the end.

    Of memory the median of looks, of descriptors the fewest.
    """
    began = min(WARM, samples[-1].at / 3)
    warm = [sample for sample in samples if sample.at >= began]
    few = max(1, min(CALM, len(warm) // 4))
    ends = warm[:few], warm[-few:]
    memory = [median(sample.memory for sample in end) for end in ends]
    descriptors = [min(sample.descriptors for sample in end) for end in ends]
    return memory[1] / memory[0] - 1, descriptors[1] - descriptors[0]


def page(seconds, total, samples, struck, ends):
    """Return the document."""
    memory, descriptors = grown(samples)
    kinds = Counter()
    for (kind, _), count in ends.items():
        kinds[kind] += count
    hostile = "\n".join(
        f"| {kind} | {count:,} | {', '.join(sorted(str(e) for k, e in ends if k == kind))} |"
        for kind, count in sorted(kinds.items())
    )
    faults = "\n".join(f"- {name}" for name in FAULTS)
    tenths = [samples[i * (len(samples) - 1) // 10] for i in range(11)]
    rows = "\n".join(
        f"| {s.at / 60:.1f} | {s.memory / 2**20:.2f} | {s.descriptors} |" for s in tenths
    )
    times = total.response_time.percentiles
    return f"""\
# A long run with faults and hostile clients

Written by `make soak` (`MINUTES=30` by default), which fails unless all of this holds: every request
has one end, none was computed twice, `/metrics` agrees with the clients, each hostile client met what it
should, and from warm (minute {min(WARM, seconds / 3) / 60:.2g}) to the end, at equal load, the dispatcher's memory grew by
less than {GROWTH:.0%} and its descriptors stayed the same, within {SPREAD}.

This run: **{seconds / 60:g} minutes** at {RATE:.0f} req/s, {HOSTILE:.0%} of them hostile, the rest {(1 - HOSTILE) * RATE * (WAIT + 0.001) / SERVERS / CORES:.0%} of what the
{SERVERS} stand-in model servers can do, and {struck} faults, one {EVERY:g} s after the other:

{faults}

| sent | answered | refused | failed | response time p50 | p99 |
|---|---|---|---|---|---|
| {total.sent:,} | {total.answered:,} | {total.rejected:,} | {total.failed:,} | {times["p50"] * 1000:.0f} ms | {times["p99"] * 1000:.0f} ms |

Growth of the dispatcher's memory (RSS) after warm-up: **{memory:+.2%}**, of its descriptors: **{descriptors:+g}**.

| minute | RSS, MiB | descriptors |
|---|---|---|
{rows}

Hostile clients (`tests/system/faults/hostile.py`), from an address and for a model of their own:

| kind | clients | what came of them |
|---|---|---|
{hostile}
"""


def main():
    """Run for the minutes that the command line says."""
    seconds = 60 * float(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="roma-soak-") as directory:
        total, samples, struck, ends = asyncio.run(soak(Path(directory), seconds))
    text = page(seconds, total, samples, struck, ends)
    sys.stdout.write(text)
    memory, descriptors = grown(samples)
    if memory >= GROWTH or abs(descriptors) > SPREAD:
        sys.exit(
            f"RSS {memory:+.2%}: must be < {GROWTH:.0%}; descriptors {descriptors:+g}: ±{SPREAD}"
        )
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

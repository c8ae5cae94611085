"""Runs a steady open-loop load through a fault, checks that nothing was lost, and times recovery.

What is checked of every fault: each request sent has one end; the dispatcher, where it lived
through, counted the same ends as the clients; no request was computed twice; who was answered got
the answer to his own request; the answers are of the stated kinds, and after the fault everybody is
answered again. Times are measured and reported, never compared: a busy machine must fail no test.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roma.tools.load import LoadRun, RequestEnd, Stream
from roma.tools.load.client import RestClient
from tests.support.deployment import Deployment
from tests.system.faults.clients import Retrying

RATE = 100.0
"""Requests per second: an eighth of what a stand-in can do, so that it is never the load."""

BEFORE = 50
"""Requests that are answered before the fault."""

PROMISE = 3.0
"""Seconds: the model's SLA. A busy machine that stands still for a second breaks none."""

HARM = 0.5
"""Seconds: a later answer is harm, too, where times are reported."""

CALM = 50
"""Requests answered in a row after which the fault is over."""

MOST = 3000
"""Requests that are sent at most: a deployment that does not recover fails the test."""

Strike = Callable[[Deployment], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True)
class Fault:
    """A line of the matrix: what is done (until its block ends), and what shall come of it.

    `statuses` are those that clients may see beside 200, `unreached` the ways in which they may be
    left without one, `most_failed` bounds both but refusals (429, 503, 504).
    """

    name: str
    injection: str
    outcome: str
    strike: Strike
    statuses: frozenset[int] = frozenset()
    unreached: frozenset[str] = frozenset()
    most_failed: int = 0
    some_refused: bool = False
    lasts: int = 100
    """Requests sent while it lasts."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    stage: Callable[[Path], AbstractAsyncContextManager[Mapping[str, Any]]] | None = None
    """What the ground stands on; yields more options of it."""
    retries: bool = False
    """Clients try again, as they would behind a load balancer: then none may fail."""
    restarts: bool = False
    """The dispatcher does not live through it, and its counts begin anew."""
    at_the_door: bool = False
    """Some are refused before the dispatcher counts them."""
    after: Callable[[Deployment], Awaitable[None]] | None = None
    """What else must be so when it is over."""


@dataclass(frozen=True)
class Row:
    """What came of a fault; `recovery` in seconds from its end, see `_recovery`."""

    fault: Fault
    sent: int
    failed: int
    refused: int
    recovery: float


class Steady(Sequence[float]):
    """Send times at a steady rate until somebody says `end`, `most` of them."""

    def __init__(self, rate: float = RATE, most: int = MOST) -> None:
        self.rate, self.most = rate, most
        self.is_over = False

    def end(self) -> None:
        self.is_over = True

    def __len__(self) -> int:
        return self.most

    def __getitem__(self, index):
        return range(self.most)[index] / self.rate

    def __iter__(self):
        for index in range(self.most):
            if self.is_over:
                return
            yield index / self.rate


class Seen:
    """The results of a run as they come."""

    def __init__(self) -> None:
        self.results = []
        self.ends: dict[int, bool] = {}

    def take(self, result) -> None:
        self.results.append(result)
        self.ends[result.index] = result.outcome is RequestEnd.ANSWERED

    def calm_since(self, first: int) -> bool:
        """Whether the last requests were all answered, all of them sent at or after `first`."""
        last = max(self.ends, default=0)
        return last - CALM > first and all(
            self.ends.get(index, True) for index in range(last - CALM, last)
        )


async def drive(fault: Fault, directory: Path) -> Row:
    """Run a fault; raise AssertionError if something is not as stated."""
    async with AsyncExitStack() as stack:
        options = {"response_time": PROMISE} | dict(fault.deployment)
        if fault.stage is not None:
            options |= await stack.enter_async_context(fault.stage(directory))
        deployment = await stack.enter_async_context(Deployment(directory, **options))
        seen, steady = Seen(), Steady()
        client = await stack.enter_async_context(RestClient(deployment.url))
        attempts = Retrying(client) if fault.retries else client
        stream = Stream("m", steady, lambda index: b'{"instances": ["%d"]}' % index)
        load = LoadRun([stream], attempts, on_result=seen.take)
        running = asyncio.create_task(load.run())

        async def until(condition) -> None:
            while not condition():
                assert not running.done(), f"it does not recover:\n{deployment.tail()}"
                await asyncio.sleep(0.005)

        try:
            await until(lambda: len(seen.ends) >= BEFORE)
            before = load.progress.sent
            async with fault.strike(deployment):
                await until(lambda: load.progress.sent >= before + fault.lasts)
                over = load.progress.elapsed
            first = load.progress.sent
            await until(lambda: seen.calm_since(first))
        finally:
            steady.end()
            report = (await running).total
        await _check(fault, deployment, report, seen)
        if fault.after is not None:
            await fault.after(deployment)
        return Row(fault, report.sent, report.failed, report.rejected, _recovery(seen, over))


def _recovery(seen: Seen, over: float) -> float:
    """Return how long after the fault the last request ended that it had harmed."""
    harmed = (
        result.done
        for result in seen.results
        if result.outcome is not RequestEnd.ANSWERED or result.response_time > HARM
    )
    return max(0.0, max(harmed, default=0.0) - over)


async def _check(fault: Fault, deployment: Deployment, total, seen: Seen) -> None:
    said = f"{dict(total.statuses)} {dict(total.reasons)}\n{deployment.tail()}"
    assert total.lost == total.invalid == 0, said
    assert total.sent == total.answered + total.rejected + total.failed, said
    assert set(total.statuses) <= fault.statuses | {200}, said
    assert set(total.reasons) <= fault.unreached, said
    assert total.failed <= fault.most_failed, said
    assert total.rejected or not fault.some_refused, said
    assert all(
        json.loads(r.answer)["predictions"] == [str(r.index)]
        for r in seen.results
        if r.outcome is RequestEnd.ANSWERED and not fault.retries
    )
    computed = deployment.computed()
    assert max(computed.values()) == 1, computed.most_common(3)
    answered = {str(r.index) for r in seen.results if r.outcome is RequestEnd.ANSWERED}
    assert answered <= {number.partition(".")[0] for number in computed}
    if not fault.restarts:
        expected = as_counted(total.statuses, total.reasons)
        if fault.at_the_door:
            expected["rejected"] = deployment.outcomes()["rejected"]
        await deployment.until(
            lambda: sum(deployment.outcomes().values()) >= sum(expected.values())
        )
        assert +deployment.outcomes() == +expected, said


def as_counted(statuses: Mapping[int, int], reasons: Mapping[str, int]) -> Counter[str]:
    """Return what the dispatcher should have counted; a connection refused it never saw."""
    counted = Counter(cancelled=reasons.get("timeout", 0))
    for status, count in statuses.items():
        kind = {200: "answered", 429: "rejected", 503: "rejected", 504: "rejected"}
        counted[kind.get(status, "failed")] += count
    return counted

"""The generator in virtual time: a service of known delays, so every number is exact."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from roma.tools.load.errors import LoadInputError, NoAnswerError
from roma.tools.load.generator import LoadRun, Stream
from roma.tools.load.outcomes import HttpAnswer, Progress, RequestEnd, RequestResult
from roma.tools.load.report import ModelOutcomes

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]

Rule = Callable[[bytes], Awaitable[HttpAnswer]]
EVERY_SECOND = [float(second) for second in range(10)]


class Service:
    """Answers by a rule and remembers when each request reached it."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.seen: list[tuple[int, str, bytes]] = []

    async def predict(self, model: str, body: bytes) -> HttpAnswer:
        tenths = round(asyncio.get_running_loop().time() * 10)
        self.seen.append((tenths, model, body))
        return await self._rule(body)


async def never(_: bytes) -> HttpAnswer:
    await asyncio.Event().wait()
    raise AssertionError


async def instantly(_: bytes) -> HttpAnswer:
    return HttpAnswer(200, b"")


async def after_half_a_second(_: bytes) -> HttpAnswer:
    await asyncio.sleep(0.5)
    return HttpAnswer(200, b"yes")


def virtual(plan: Sequence[Stream], service: Service, **options: Any) -> LoadRun:
    return LoadRun(plan, service, clock=asyncio.get_running_loop().time, **options)


def stream(model: str = "m", times: list[float] = EVERY_SECOND, **more: Any) -> Stream:
    return Stream(model, times, [b"a", b"b", b"c"], **more)


def ends(report: ModelOutcomes) -> dict[str, int]:
    counts = {o.value: getattr(report, o.value) for o in RequestEnd if getattr(report, o.value)}
    return counts | dict(report.reasons)


async def test_a_service_that_never_answers_does_not_stop_the_sends() -> None:
    service = Service(never)
    report = await virtual([stream()], service, timeout=30).run()
    assert service.seen == [(10 * s, "m", b"abc"[s % 3 : s % 3 + 1]) for s in range(10)]
    assert ends(report.total) == {"failed": 10, "timeout": 10}
    assert report.elapsed == pytest.approx(9 + 30)
    assert report.total.lost == 0


async def test_answers_are_timed_and_handed_on() -> None:
    results: list[RequestResult] = []
    load = virtual([stream(sla=0.4)], Service(after_half_a_second), on_result=results.append)
    report = await load.run()
    assert [result.index for result in results] == list(range(10))
    assert {result.answer for result in results} == {b"yes"}
    assert [result.response_time for result in results] == pytest.approx([0.5] * 10)
    assert ends(report.total) == {"answered": 10}
    assert report.total.late_share == 1.0
    assert report.total.send_lag is not None
    assert report.total.send_lag.max == pytest.approx(0.0, abs=1e-5)


async def test_streams_run_side_by_side_in_the_order_of_their_times() -> None:
    service = Service(after_half_a_second)
    plan = [stream("a", [0.0, 0.2, 0.4]), stream("b", [0.1, 0.2, 0.3])]
    report = await virtual(plan, service).run()
    assert [(when, model) for when, model, _ in service.seen] == [
        *((0, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "b"), (4, "a"))
    ]
    assert [(model.model, model.sent, model.answered) for model in report.models] == [
        ("a", 3, 3),
        ("b", 3, 3),
    ]


async def test_above_the_limit_a_request_fails_at_once_and_is_counted() -> None:
    service = Service(never)
    results: list[RequestResult] = []
    load = virtual([stream()], service, timeout=4.5, max_outstanding=3, on_result=results.append)
    report = await load.run()
    # 0, 1 and 2 fill the limit until 4.5, 5.5 and 6.5 s; then 5, 6 and 7 take their places.
    assert [when for when, _, _ in service.seen] == [0, 10, 20, 50, 60, 70]
    assert ends(report.total) == {"failed": 10, "client limit": 4, "timeout": 6}
    refused = [result for result in results if result.reason == "client limit"]
    assert [result.index for result in refused] == [3, 4, 8, 9]
    assert all(result.sent is None for result in refused)
    assert report.total.lost == 0


async def test_every_kind_of_end_is_counted_once() -> None:
    async def rule(body: bytes) -> HttpAnswer:
        if not body.isdigit():
            raise NoAnswerError(body.decode())
        return HttpAnswer(int(body), b"")

    bodies = [b"200", b"429", b"503", b"504", b"400", b"500", b"302", b"connect"]
    report = await virtual([Stream("m", [0.0] * 16, bodies)], Service(rule)).run()
    assert ends(report.total) == {
        "answered": 2,
        "rejected": 6,
        "invalid": 2,
        "failed": 6,
        "connect": 2,
    }
    assert report.total.statuses == {200: 2, 302: 2, 400: 2, 429: 2, 500: 2, 503: 2, 504: 2}
    assert report.total.lost == 0


async def test_stop_ends_what_is_outstanding_as_cancelled() -> None:
    load = virtual([stream()], Service(never))
    asyncio.get_running_loop().call_later(3.5, load.stop)
    report = await load.run()
    assert ends(report.total) == {"failed": 4, "cancelled": 4}
    assert (report.planned, report.total.sent, report.total.lost) == (10, 4, 0)
    assert report.elapsed == pytest.approx(3.5)


async def test_a_request_stopped_before_its_first_step_still_ends() -> None:
    def body(index: int) -> bytes:
        if index == 3:  # runs after the request is created and before it takes its first step
            asyncio.get_running_loop().call_soon(load.stop)
        return b""

    service = Service(never)
    load = virtual([Stream("m", EVERY_SECOND, body)], service)
    report = await load.run()
    assert len(service.seen) == 3
    assert ends(report.total) == {"failed": 4, "cancelled": 4}
    assert report.total.lost == 0


async def test_stop_from_the_sends_own_path_sends_nothing_more() -> None:
    def body(index: int) -> bytes:
        if index == 3:
            load.stop()
        return b""

    load = virtual([Stream("m", EVERY_SECOND, body)], Service(never))
    report = await load.run()
    assert (report.total.sent, ends(report.total)) == (3, {"failed": 3, "cancelled": 3})


async def test_stopped_before_it_runs_it_sends_nothing() -> None:
    load = virtual([stream()], Service(never))
    load.stop()
    assert (await load.run()).total.sent == 0


async def test_a_cancelled_run_still_has_a_consistent_report() -> None:
    load = virtual([stream()], Service(never))
    run = asyncio.create_task(load.run())
    await asyncio.sleep(2.5)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    report = load.report()
    assert ends(report.total) == {"failed": 3, "cancelled": 3}
    assert report.total.lost == 0


async def test_an_error_of_a_callback_ends_the_run_and_is_raised() -> None:
    def on_result(result: RequestResult) -> None:
        if result.index == 2:
            raise ZeroDivisionError

    load = virtual([stream()], Service(after_half_a_second), on_result=on_result)
    with pytest.raises(ZeroDivisionError):
        await load.run()
    assert (load.report().total.sent, load.report().total.lost) == (3, 0)


async def test_progress_is_told_while_it_runs_and_at_the_end() -> None:
    told: list[Progress] = []
    load = virtual(
        [stream()], Service(after_half_a_second), on_progress=told.append, progress_period=2.25
    )
    await load.run()
    # 2.25 s after the start: 0, 1 and 2 are sent, 2 is on its way.
    assert told[1] == Progress(
        elapsed=pytest.approx(2.25), sent=3, answered=2, rejected=0, failed=0
    )
    assert len(told) == 6  # at 0, 2.25, 4.5, 6.75 and 9 s, and at the end
    assert (told[-1].sent, told[-1].answered) == (10, 10)


async def test_an_empty_plan_is_an_empty_report() -> None:
    report = await virtual([], Service(never)).run()
    assert (report.planned, report.total.sent) == (0, 0)


async def test_bad_options_name_value_and_bound() -> None:
    service = Service(never)
    with pytest.raises(LoadInputError, match="timeout 0 s: must be finite and > 0"):
        LoadRun([], service, timeout=0)
    with pytest.raises(LoadInputError, match="streams for m, m: must be one for each model"):
        LoadRun([stream(), stream()], service)
    with pytest.raises(LoadInputError, match="0 request bodies"):
        LoadRun([Stream("m", [0.0], [])], service)
    with pytest.raises(LoadInputError, match="sla 0 s of m"):
        stream(sla=0)


async def test_a_sleep_that_ends_early_sends_nothing_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = asyncio.sleep
    # As uvloop does with milliseconds, here with whole seconds, which are easier to see.
    monkeypatch.setattr(asyncio, "sleep", lambda delay: sleep(math.floor(delay + 0.5) or delay))
    results: list[RequestResult] = []
    times = [0.0, 1.3, 2.6, 3.9]
    load = virtual([stream(times=times)], Service(instantly), on_result=results.append)
    await load.run()
    assert [result.lag >= 0 for result in results if result.lag is not None] == [True] * 4


async def test_a_stalled_generator_catches_up_and_blames_itself() -> None:
    now = 0.0

    def body(_: int) -> bytes:
        nonlocal now
        now += 5.0  # a stall: making each body takes five seconds
        return b""

    results: list[RequestResult] = []
    plan = [Stream("m", [0.0, 1.0, 2.0], body)]
    load = LoadRun(plan, Service(instantly), clock=lambda: now, on_result=results.append)
    report = await load.run()
    # Nothing is skipped, and the wait before the send counts as response time.
    assert report.total.answered == 3
    assert [result.intended for result in results] == [0.0, 1.0, 2.0]
    assert all(result.lag is not None and result.lag >= 4.0 for result in results)
    assert all(result.response_time >= (result.lag or 0.0) for result in results)

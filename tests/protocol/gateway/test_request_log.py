"""What the log says of requests: nothing of answered ones, little of many that were not."""

import asyncio
import logging

import pytest

from tests.protocol.gateway.conftest import answering

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def everything(caplog):
    caplog.set_level(logging.INFO)


def lines(caplog):
    return [r for r in caplog.records if r.name == "dispatcher.live.request_log"]


async def test_an_answered_request_is_no_line(harness, caplog):
    await harness.open()
    caplog.clear()
    await harness.predict()
    await harness.predict(headers={"X-Request-Id": "a"})
    assert (await harness.predict(path="/v1/models/x:predict"))[0] == 404
    assert (await harness.predict(path="/v1/what"))[0] == 400
    assert caplog.records == []


async def test_a_rejected_request_is_a_line_that_names_it(harness, caplog):
    await harness.open(response_time=0.2, deadline=0.2)
    backend = harness.backends[0]
    running = await harness.held()
    sent = {"X-Request-Id": "r-7", "traceparent": PARENT}
    assert (await harness.predict(headers=sent))[0] == 504
    backend.gate.set()
    await running
    (line,) = lines(caplog)
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("request r-7 of model m: rejected (deadline) after ")
    assert (line.request_id, line.trace_id, line.model) == ("r-7", TRACE, "m")
    assert (line.executable, line.outcome, line.reason) == (None, "rejected", "deadline")
    assert line.response_time >= 0.2


async def test_without_a_number_of_its_own_a_request_has_the_dispatchers(harness, caplog):
    await harness.open()
    await harness.predict()

    harness.backends[0].behave = answering({}, 500)
    await harness.predict()
    (line,) = lines(caplog)
    assert line.getMessage().startswith("request 2 of model m: failed (status_500) after ")
    assert (line.request_id, line.trace_id, line.executable) == ("2", None, "m.0@local")
    assert line.status == 500


async def test_a_clients_own_fault_is_no_line(harness, caplog):
    await harness.open()

    harness.backends[0].behave = answering({"error": "JSON Parse error"}, 400)
    await harness.predict()
    assert lines(caplog) == []


async def test_a_flood_of_rejections_and_failures_is_few_lines(harness, caplog):
    await harness.open(max_waiting=1, timeout=0.05, requests="failed")
    harness.backends[0].gate = asyncio.Event()
    caplog.clear()
    answers = await asyncio.gather(*(harness.predict() for _ in range(60)))
    statuses = [status for status, _, _ in answers]
    assert statuses.count(429) >= 50
    assert statuses.count(502) >= 1
    assert len(caplog.records) <= 10  # a few kinds of lines, each once a second
    await harness.running.aclose()
    counts = [getattr(record, "suppressed", 0) for record in lines(caplog)]
    assert counts.count(0) + sum(counts) == 60  # none is lost
    harness.backends[0].gate.set()


async def test_none_is_none(harness, caplog):
    await harness.open(max_waiting=1, timeout=0.05, requests="none")
    harness.backends[0].gate = asyncio.Event()
    await asyncio.gather(*(harness.predict() for _ in range(5)))
    assert lines(caplog) == []
    harness.backends[0].gate.set()


async def test_all_is_all(harness, caplog):
    await harness.open(requests="all")
    for _ in range(3):
        await harness.predict()
    backend = harness.backends[0]
    call = await harness.held()
    call.cancel()
    await harness.until(lambda: len(lines(caplog)) == 4)
    backend.gate.set()
    *answered, cancelled = lines(caplog)
    assert [r.outcome for r in answered] == ["answered"] * 3
    assert {r.levelno for r in lines(caplog)} == {logging.INFO}
    assert answered[0].getMessage().startswith("request 1 of model m: answered after ")
    assert (cancelled.outcome, cancelled.executable) == ("cancelled", "m.0@local")

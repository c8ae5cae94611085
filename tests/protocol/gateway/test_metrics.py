"""GET /metrics of a real dispatcher, read as Prometheus reads it: the very counts that clients saw."""

import asyncio
import threading

import pytest
from aiohttp import web
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from roma.domain.stats import Histogram
from roma.telemetry import prometheus


async def scrape(harness, parse=text_string_to_metric_families, **headers):
    """Return samples by name and label values, in the order of the labels' names."""
    async with harness.session.get(harness.admin + "/metrics", headers=headers) as response:
        assert response.status == 200
        families = parse((await response.read()).decode())
        return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


async def test_every_request_is_in_exactly_one_count(harness):
    await harness.open(max_waiting=2)
    backend = harness.backends[0]

    async def by_turns(request, body):
        if b"bad" in body:
            return web.Response(status=400, body=b"{}")
        if b"broken" in body:
            return web.Response(status=500, body=b"{}")
        return web.Response(body=b"{}")

    backend.behave = by_turns
    for body in (b"good", b"good", b"good", b"bad", b"broken"):
        await harness.predict(body)
    backend.gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict()) for _ in range(5)]
    await harness.until(lambda: sum(harness.queue.rejected.values()) == 2)
    during = await scrape(harness)
    backend.gate.set()
    await asyncio.gather(*calls)
    found = await scrape(harness)
    assert found["roma_requests_total", "cpu", "m", "answered"] == 4 + 3
    assert found["roma_requests_total", "gpu", "m", "answered"] == 0
    assert found["roma_requests_total", "", "m", "failed"] == 1
    assert found["roma_requests_total", "", "m", "rejected"] == 2
    assert found["roma_rejected_requests_total", "m", "queue_full"] == 2
    assert found["roma_invalid_answers_total", "m"] == 1
    assert found["roma_executable_executions_total", "m.0@local"] == 7
    assert (during["roma_queue_length", "m"], found["roma_queue_length", "m"]) == (2, 0)
    assert during["roma_requests_in_flight", "m"] == 1
    assert during["roma_oldest_request_age_seconds", "m"] > 0
    assert found["roma_sla_seconds", "m"] == 5
    assert found["roma_set_point_seconds", "m"] == 2.5


async def test_the_response_time_is_what_was_measured_last(harness):
    await harness.open()
    name = "roma_response_time_seconds", "m"
    # Absent again after a period without answers.
    async with asyncio.timeout(60):
        while (found := await scrape(harness)).get(name) is None:
            await harness.predict()
    assert 0 < found[name] < 60


async def test_a_lost_executable_is_not_ready_and_what_was_never_measured_is_absent(harness):
    await harness.open(start=False)
    found = await scrape(harness)
    assert found["roma_executable_ready", "cpu", "m.0@local"] == 0
    assert ("roma_response_time_seconds", "m") not in found


@pytest.mark.parametrize(
    ("accept", "parse"),
    [
        ("application/openmetrics-text; version=1.0.0", openmetrics_families),
        ("text/plain; version=0.0.4", text_string_to_metric_families),
        ("application/openmetrics-text; version=new", text_string_to_metric_families),
    ],
)
async def test_the_client_chooses_the_format(harness, accept, parse):
    await harness.open()
    await harness.predict()
    found = await scrape(harness, parse, Accept=accept)
    assert found["roma_requests_total", "cpu", "m", "answered"] == 1


async def test_a_histogram_has_the_counts_of_the_moment_and_is_written_in_a_thread(monkeypatch):
    add, threads = HistogramMetricFamily.add_metric, []

    def recorded(*arguments):
        threads.append(threading.current_thread())
        return add(*arguments)

    monkeypatch.setattr(HistogramMetricFamily, "add_metric", recorded)
    counts = Histogram((0.5, 1.0))
    counts.add(0.75)
    metric = prometheus.histogram("times_seconds", "Times.", ["model"], [(("m",), counts)])
    counts.add(0.75)
    body, _ = await prometheus.encoded("", [metric])
    (family,) = text_string_to_metric_families(body.decode())
    assert [(s.name, s.labels.get("le"), s.value) for s in family.samples] == [
        ("roma_times_seconds_bucket", "0.5", 0),
        ("roma_times_seconds_bucket", "1.0", 1),
        ("roma_times_seconds_bucket", "+Inf", 1),
        ("roma_times_seconds_count", None, 1),
        ("roma_times_seconds_sum", None, 0.75),
    ]
    assert len(threads) == 1
    assert threading.current_thread() not in threads

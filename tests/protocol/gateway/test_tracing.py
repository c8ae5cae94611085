"""Spans through the real exporter to a real collector: what belongs to what, and in which order."""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from aiohttp import web
from multidict import CIMultiDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import aborting, answering

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER, CLIENT, INTERNAL, ERROR = 2, 3, 1, 2  # of the protocol
ROOT = Path(__file__).parents[3]


class Span:
    """A decoded span."""

    def __init__(self, span, resource):
        self.name, self.kind = span.name, span.kind
        self.trace, self.id, self.parent = (
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
        )
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.error = span.status.code == ERROR
        self.state = span.trace_state
        self.attributes = {a.key: _value(a.value) for a in span.attributes}
        self.resource = {a.key: _value(a.value) for a in resource.attributes}

    @property
    def seconds(self):
        return (self.end - self.start) / 1e9


def _value(value):
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """Takes OTLP over HTTP, as an OpenTelemetry collector does."""

    def __init__(self, port):
        self.port = port
        self.spans = []
        self.status = 200
        self.gate = None
        self._runner = None

    async def start(self):
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self):
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request):
        message = ExportTraceServiceRequest.FromString(await request.read())
        if self.gate is not None:
            await self.gate.wait()
        if self.status == 200:
            for group in message.resource_spans:
                for scope in group.scope_spans:
                    self.spans += [Span(span, group.resource) for span in scope.spans]
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def named(self, name):
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start)

    @property
    def servers(self):
        return [s for s in self.spans if s.kind == SERVER]


@pytest.fixture
async def collector(monkeypatch):
    collector = Collector(free_ports(1)[0])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    await collector.start()
    yield collector
    await collector.stop()


def inside(inner, outer):
    return outer.start <= inner.start <= inner.end <= outer.end


def sampled(headers):
    """What a model server is told: the trace, its parent, and whether they are recorded."""
    version, trace, parent, flags = headers["traceparent"].split("-")
    assert version == "00"
    return trace, parent, bool(int(flags, 16) & 1)  # level 2 has a second flag


async def test_a_unix_socket_is_an_address_without_a_port(harness, collector, sockets):
    await harness.open(traces=True, sockets=sockets)
    assert (await harness.predict())[0] == 200
    await harness.until(lambda: len(collector.spans) == 3)
    (execute,) = collector.named("execute")
    told = {"server.address": f"{sockets}/0.sock", "network.transport": "unix"}
    assert execute.attributes.items() >= told.items()
    assert "server.port" not in execute.attributes


async def test_a_request_is_three_spans_one_in_the_other(harness, collector):
    before = time.time_ns()
    await harness.open(traces=True, response_time=5)
    assert (await harness.predict())[0] == 200
    await harness.until(lambda: len(collector.spans) == 3)
    (server,), (queue,), (execute,) = (
        collector.named(n) for n in ("POST /v1/models/{model}:predict", "queue", "execute")
    )
    assert [s.kind for s in (server, queue, execute)] == [SERVER, INTERNAL, CLIENT]
    assert {s.trace for s in (server, queue, execute)} == {server.trace}
    assert (server.parent, queue.parent, execute.parent) == ("", server.id, server.id)
    assert inside(queue, server)
    assert inside(execute, server)
    assert queue.end == execute.start
    assert before < server.start < server.end < time.time_ns()
    _, headers, _ = harness.backends[0].seen[-1]
    assert sampled(headers) == (server.trace, execute.id, True)
    assert server.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/models/{model}:predict",
        "url.path": "/v1/models/m:predict",
        "url.scheme": "http",
        "server.address": "127.0.0.1",
        "server.port": harness.port,
        "roma.model": "m",
        "roma.executable": "m.0@local",
        "roma.device": "cpu",
        "roma.outcome": "answered",
        "roma.sla": 5.0,
        "roma.late": False,
    }
    assert execute.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": harness.backends[0].port,
        "roma.model": "m",
        "roma.executable": "m.0@local",
        "roma.device": "cpu",
    }
    assert queue.attributes == {"roma.model": "m"}
    assert server.resource["service.name"] == "roma"


async def test_a_request_over_tls_says_so(harness, collector, authority):
    await harness.open(traces=True, tls=authority.issue("server", "localhost"))
    assert (await harness.predict(ssl=False))[0] == 200
    await harness.until(lambda: collector.servers)
    assert collector.servers[0].attributes["url.scheme"] == "https"


async def test_a_clients_trace_is_taken_up(harness, collector):
    await harness.open(traces=True)
    sent = {
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "tracestate": "a=1,b=2",
        "X-Request-Id": "r-1",
    }
    _, _, answered = await harness.predict(headers=sent)
    assert answered["X-Request-Id"] == "r-1"
    await harness.until(lambda: len(collector.spans) == 3)
    (server,), (execute,) = collector.servers, collector.named("execute")
    assert (server.trace, server.parent) == (TRACE, PARENT)
    assert server.attributes["roma.request_id"] == "r-1"
    assert (server.state, execute.state) == ("a=1,b=2", "a=1,b=2")
    _, headers, _ = harness.backends[0].seen[-1]
    assert sampled(headers) == (TRACE, execute.id, True)
    assert headers["tracestate"] == "a=1,b=2"
    assert CIMultiDict(headers)["X-Request-Id"] == "r-1"


async def test_a_client_that_does_not_sample_leaves_no_span(harness, collector):
    await harness.open(traces=True)
    await harness.predict(headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    _, headers, _ = harness.backends[0].seen[-1]
    trace, parent, is_sampled = sampled(headers)
    assert (trace, is_sampled) == (TRACE, False)
    assert parent not in (PARENT, "0" * 16)
    await harness.predict()
    await harness.until(lambda: len(collector.spans) == 3)
    assert TRACE not in {s.trace for s in collector.spans}


async def test_opentelemetrys_variables_are_honoured(harness, collector, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    await harness.open(traces=True)
    assert (await harness.predict())[0] == 200
    await harness.predict(headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    await harness.until(lambda: len(collector.spans) == 3)
    assert {s.trace for s in collector.spans} == {TRACE}
    assert {s.resource["service.name"] for s in collector.spans} == {"mine"}


async def test_a_request_that_its_deadline_met_in_the_queue_has_waited_and_not_run(
    harness, collector
):
    await harness.open(traces=True, response_time=1.0, deadline=1.0)
    backend = harness.backends[0]
    running = await harness.held()
    status, _, _ = await harness.predict(headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert status == 504
    backend.gate.set()
    await running
    await harness.until(lambda: len(collector.spans) == 5)
    ours = {s.name: s for s in collector.spans if s.trace == TRACE}
    server, queue = ours["POST /v1/models/{model}:predict"], ours["queue"]
    assert len(ours) == 2
    assert server.attributes["roma.outcome"] == "rejected"
    assert server.attributes["roma.reason"] == queue.attributes["roma.reason"] == "deadline"
    assert server.attributes["http.response.status_code"] == 504
    assert server.error
    assert "roma.executable" not in server.attributes
    assert queue.seconds >= 0.99
    assert inside(queue, server)
    other = next(s for s in collector.servers if s.trace != TRACE)
    assert other.attributes["roma.late"] is True


async def test_a_client_that_goes_away_ends_its_spans(harness, collector):
    await harness.open(traces=True)
    backend = harness.backends[0]
    running = await harness.held()
    waiting = asyncio.create_task(harness.predict(headers={"X-Request-Id": "waits"}))
    await harness.until(lambda: len(harness.queue) == 1)
    for call in (running, waiting):
        call.cancel()
    await harness.until(lambda: len(collector.spans) == 5)
    backend.gate.set()
    assert (await harness.predict())[0] == 200  # what was abandoned has ended by now
    await harness.until(lambda: len(collector.spans) == 8)
    gone = [s for s in collector.servers if s.attributes["roma.outcome"] == "cancelled"]
    assert len(gone) == 2
    waited = next(s for s in gone if s.attributes.get("roma.request_id") == "waits")
    ran = next(s for s in gone if s is not waited)
    assert not any(s.error for s in gone)
    children = {s.parent: s for s in collector.spans if s.name == "execute"}
    assert inside(children[ran.id], ran)
    assert children[ran.id].attributes["roma.outcome"] == "cancelled"
    assert waited.id not in children
    (queued,) = [s for s in collector.named("queue") if s.parent == waited.id]
    assert queued.attributes["roma.outcome"] == "cancelled"


async def test_a_grpc_call_is_three_spans_named_by_its_method(harness, collector):
    await harness.open(traces=True, speaks_grpc=True)
    name = "tensorflow.serving.PredictionService/Predict"
    request = b"\x0a\x03\x0a\x01m"
    parent = f"00-{TRACE}-{PARENT}-01"
    code, *_ = await harness.call(f"/{name}", request, metadata=(("traceparent", parent),))
    assert code is grpc.StatusCode.OK
    await harness.until(lambda: len(collector.spans) == 3)
    (server,), (queue,), (execute,) = (collector.named(n) for n in (name, "queue", "execute"))
    assert {s.trace for s in (server, queue, execute)} == {TRACE}
    assert (server.parent, queue.parent, execute.parent) == (PARENT, server.id, server.id)
    told = dict(harness.grpc_backends[0].seen[0][1])
    assert sampled(told) == (TRACE, execute.id, True)
    rpc = {
        "rpc.system": "grpc",
        "rpc.service": "tensorflow.serving.PredictionService",
        "rpc.method": "Predict",
        "rpc.grpc.status_code": 0,
    }
    assert server.attributes.items() >= {**rpc, "server.port": harness.grpc_port}.items()
    port = harness.grpc_backends[0].port
    assert execute.attributes.items() >= {**rpc, "server.port": port}.items()
    assert not any("http.request.method" in s.attributes for s in (server, execute))


@pytest.mark.parametrize(
    ("request_", "code"), [(b"\x0a\x03\x0a\x01x", 5), (b"\x0a\x03\x0a\x01m", 13)]
)
async def test_a_grpc_call_that_fails_says_so(harness, collector, request_, code):
    await harness.open(traces=True, speaks_grpc=True)

    harness.grpc_backends[0].behave = aborting(grpc.StatusCode.INTERNAL, "boom")
    await harness.call("/tensorflow.serving.PredictionService/Predict", request_)
    await harness.until(lambda: collector.servers)
    (server,) = collector.servers
    assert server.attributes["rpc.grpc.status_code"] == code
    assert server.error == (code == 13)


async def test_a_second_way_is_a_second_pair_of_spans(harness, collector):
    await harness.open(backends=2, traces=True)
    dead = await harness.unreachable()
    for _ in range(2):  # one of them meets it
        assert (await harness.predict())[0] == 200
    await harness.until(lambda: len(collector.spans) == 8)
    first, second = (
        sorted(s.start for s in collector.spans if s.name == "execute" and s.parent == server.id)
        for server in sorted(
            collector.servers,
            key=lambda s: [c.parent for c in collector.spans].count(s.id),
        )
    )
    assert (len(first), len(second)) == (1, 2)
    failed, ran = [s for s in collector.named("execute") if s.start in second]
    assert (failed.error, failed.attributes["error.type"]) == (True, "BackendUnreachable")
    assert failed.attributes["roma.executable"] == dead
    assert not ran.error
    queues = [s for s in collector.named("queue") if s.parent == failed.parent]
    assert queues[0].end == failed.start
    assert queues[1].start >= failed.end
    assert queues[1].end == ran.start
    seen = {sampled(headers) for backend in harness.backends for _, headers, _ in backend.seen}
    assert (ran.trace, ran.id, True) in seen


async def test_a_failure_is_an_error_on_both_sides(harness, collector):
    await harness.open(traces=True)

    harness.backends[0].behave = answering({"error": "boom"}, 500)
    assert (await harness.predict())[0] == 500
    await harness.until(lambda: len(collector.spans) == 3)
    (server,), (execute,) = collector.servers, collector.named("execute")
    assert server.error
    assert execute.error
    assert server.attributes["roma.outcome"] == "failed"
    assert server.attributes["roma.reason"] == "status_500"
    assert execute.attributes["error.type"] == "500"


async def test_what_never_comes_to_the_dispatcher_is_one_span(harness, collector):
    await harness.open(traces=True)
    status, _, _ = await harness.predict(path="/v1/models/x/versions/7:predict")
    assert status == 404
    assert (await harness.get("/v1/models/m"))[0] == (await harness.get("/healthz"))[0] == 200
    await harness.predict()
    await harness.until(lambda: len(collector.spans) == 4)
    (unknown,) = [s for s in collector.spans if s.attributes.get("roma.model") == "x"]
    assert unknown.name == "POST /v1/models/{model}/versions/{version}:predict"
    assert unknown.attributes["http.response.status_code"] == 404
    assert not unknown.error  # the client's, says OpenTelemetry


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "dispatcher.live.tracing"]


async def test_without_a_collector_requests_are_answered_and_the_log_says_so_once(
    harness, collector, caplog
):
    caplog.set_level(logging.INFO)
    await collector.stop()
    await harness.open(traces=True)
    for _ in range(5):
        assert (await harness.predict())[0] == 200
        await asyncio.sleep(0.1)
    await harness.until(lambda: said(caplog))
    await collector.start()
    await harness.until(lambda: len(collector.spans) == 15)  # nothing was lost in so short a time
    await harness.until(lambda: len(said(caplog)) == 2)
    first, last = said(caplog)
    assert first.startswith("spans are not delivered (ConnectionError)")
    assert last == "spans are delivered again"
    assert not [r for r in caplog.records if r.name.startswith(("opentelemetry", "urllib3"))]


async def test_a_collector_that_refuses_is_told_once_with_its_status(harness, collector, caplog):
    collector.status = 401
    await harness.open(traces=True)
    for _ in range(5):
        assert (await harness.predict())[0] == 200
        await asyncio.sleep(0.05)
    await harness.until(lambda: said(caplog))
    await asyncio.sleep(0.2)
    (line,) = said(caplog)
    assert line.startswith("spans are not delivered (status 401)")


async def test_a_variable_that_is_ignored_is_said_to_be(harness, collector, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer secret")
    await harness.open(traces=True)
    timeout, header = said(caplog)
    assert timeout.startswith("OpenTelemetry: Invalid timeout value 'soon'")
    assert header.startswith("OpenTelemetry: Header format invalid!")
    assert "secret" not in caplog.text


async def test_a_collector_that_never_answers_holds_up_no_request_and_no_end(
    harness, collector, monkeypatch
):
    monkeypatch.setattr("dispatcher.live.tracing.FLUSH", 0.3)
    collector.gate = asyncio.Event()
    await harness.open(traces=True)
    for _ in range(3):
        assert (await harness.predict())[0] == 200
    await harness.running.aclose()
    assert collector.spans == []
    collector.gate.set()


async def test_the_last_spans_are_delivered_at_the_end(harness, collector, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    await harness.open(traces=True)
    assert (await harness.predict())[0] == 200
    assert collector.spans == []
    await harness.running.aclose()
    assert len(collector.spans) == 3


CONFIG = """
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{backend: static, cores: 2, executables: [{{url: "http://127.0.0.1:1", model: m}}]}}]
gateway: {{port: {}, admin_port: {}, traces: {}}}
"""

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from roma.cli import main
sys.argv = ["roma", *sys.argv[1:]]
main()
"""


def start(tmp_path, traces):
    file = tmp_path / "roma.yaml"
    file.write_text(CONFIG.format(*free_ports(2), traces))
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT, "dispatcher", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_without_the_extra_a_start_with_traces_fails_in_one_line(tmp_path):
    process = start(tmp_path, "true")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    (line,) = stderr.splitlines()
    assert line.startswith("gateway.traces = true: opentelemetry")
    assert "pip install '.[otel]'" in line


def test_without_the_extra_a_start_without_traces_needs_nothing(tmp_path):
    process = start(tmp_path, "false")
    try:
        assert any("gateway listens" in line for line in process.stderr)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-4"),  # read when OpenTelemetry is imported
    ],
)
def test_a_variable_that_makes_no_sense_is_one_line(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    file = tmp_path / "roma.yaml"
    file.write_text(CONFIG.format(*free_ports(2), "true"))
    done = subprocess.run(
        [sys.executable, "-m", "roma", "dispatcher", str(file)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gateway.traces = true: OpenTelemetry: ")
    assert len(done.stderr.splitlines()) == 1

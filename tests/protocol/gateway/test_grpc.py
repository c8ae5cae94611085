"""gRPC through the gateway on real sockets: bytes untouched, gRPC's own words for what goes wrong."""

import asyncio
import json
import sys

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dispatcher.live import app as dispatcher_app
from dispatcher.live.grpc import wire
from dispatcher.live.grpc.methods import METHODS, OIP, SERVICES, Passed
from dispatcher.live.grpc.server import GatewayGrpcServer
from roma.domain.errors import LaunchError
from roma.domain.events import Reason
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import GrpcModelServer, aborting
from tests.support import http2

PREDICT = "/tensorflow.serving.PredictionService/Predict"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
INFER = f"/{OIP}/ModelInfer"
Code = grpc.StatusCode


def chunk(number, data):
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


def asking(path, model=b"m", more=b"\x12\x03abc"):
    """A message for a method: of fields that no class knows, too."""
    if path.startswith(f"/{OIP}"):
        return chunk(1, model) + more
    spec = chunk(1, chunk(1, model))
    return chunk(1, spec) if path.endswith("MultiInference") else spec + more


PASSED = [path for path, method in METHODS.items() if isinstance(method, Passed)]


@pytest.mark.parametrize("path", PASSED)
async def test_every_method_passes_its_bytes_both_ways(harness, path):
    await harness.open(speaks_grpc=True)
    backend, odd = harness.grpc_backends[0], b"\xff\x00 no protobuf at all"

    async def answer(request, context):
        context.set_trailing_metadata((("cost", "7"), ("cost-bin", b"\x00\xff")))
        return odd

    backend.behave = answer
    request = asking(path)
    code, body, _, trailing = await harness.call(path, request)
    assert (code, body) == (Code.OK, odd)
    assert (trailing["cost"], trailing["cost-bin"]) == ("7", b"\x00\xff")
    (method, _, seen, _) = backend.seen[0]
    assert (method, seen) == (path, request)
    is_inference = METHODS[path].is_inference
    assert harness.queue.arrivals == is_inference  # look-ups wait in no queue
    assert sum(harness.queue.completed.values()) == is_inference


async def test_large_messages_pass(harness):
    await harness.open(speaks_grpc=True, max_body=2**26)
    request = asking(PREDICT) + b"\x1a\x80\x80\x80\x08" + bytes(2**24)
    code, body, _, _ = await harness.call(PREDICT, request)
    assert code is Code.OK
    assert body == request


async def test_a_larger_message_than_may_be_is_refused(harness):
    await harness.open(speaks_grpc=True, max_body=2000)
    code, _, text, _ = await harness.call(PREDICT, asking(PREDICT) + b"\x1a\x7f" + bytes(127) * 20)
    assert code is Code.RESOURCE_EXHAUSTED
    assert "larger than max" in text
    assert harness.grpc_backends[0].seen == []


async def test_the_servers_own_methods(harness):
    await harness.open(speaks_grpc=True, start=False)
    assert (await harness.call(f"/{OIP}/ServerLive", b""))[:2] == (Code.OK, b"\x08\x01")
    assert (await harness.call(f"/{OIP}/ServerReady", b""))[:2] == (Code.OK, b"")
    code, body, _, _ = await harness.call(f"/{OIP}/ServerMetadata", b"")
    assert wire.name_and_version(body)[0] == "roma"
    assert body.endswith(wire.text(3, "binary_tensor_data"))  # as over HTTP
    assert body.count(b"\x1a") == 1
    for backend in [*harness.backends, *harness.grpc_backends]:
        await backend.start()
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.call(f"/{OIP}/ServerReady", b""))[:2] == (Code.OK, b"\x08\x01")


async def test_an_executable_is_ready_once_its_grpc_is(harness):
    await harness.open(speaks_grpc=True, start=False)
    await harness.backends[0].start()
    await harness.until(lambda: len(harness.backends[0].looks) > 1)
    assert not any(harness.core.executors.of("m"))
    await harness.grpc_backends[0].start()
    await harness.until(lambda: any(harness.core.executors.of("m")))


@pytest.mark.parametrize(
    ("path", "request_", "code", "text"),
    [
        (PREDICT, b"\xff", Code.INVALID_ARGUMENT, "cannot be read"),
        (PREDICT, b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (INFER, b"", Code.INVALID_ARGUMENT, "names no model"),
        (PREDICT, asking(PREDICT, b"x"), Code.NOT_FOUND, "Latest(x)"),
        (
            PREDICT,
            chunk(1, chunk(1, b"x") + chunk(2, b"\x08\x07")),
            Code.NOT_FOUND,
            "Servable not found for request: Specific(x, 7)",
        ),
        (STATUS, asking(STATUS, b"x"), Code.NOT_FOUND, "Could not find any versions of model x"),
        (INFER, asking(INFER, b"x"), Code.NOT_FOUND, "Model not found: x"),
        (f"/{OIP}/ModelStreamInfer", b"", Code.UNIMPLEMENTED, ""),
        ("/no.Service/Method", b"", Code.UNIMPLEMENTED, ""),
    ],
)
async def test_errors_in_grpcs_words(harness, path, request_, code, text):
    await harness.open(speaks_grpc=True)
    found, _, said, _ = await harness.call(path, request_)
    assert found is code
    assert text in said
    assert harness.grpc_backends[0].seen == []


async def test_a_model_without_a_grpc_address_says_which_key_it_takes(harness):
    await harness.open(with_grpc=True)
    for path in (PREDICT, STATUS, INFER):
        code, _, text, _ = await harness.call(path, asking(path))
        assert code is Code.UNIMPLEMENTED
        assert "model m: executable m.0@local" in text
        assert "grpc_offset" in text
    assert harness.queue.arrivals == 0


@pytest.mark.parametrize(
    ("code", "invalid", "failed"),
    [
        (Code.INVALID_ARGUMENT, 1, 0),
        (Code.FAILED_PRECONDITION, 1, 0),
        (Code.INTERNAL, 0, 1),
        (Code.RESOURCE_EXHAUSTED, 0, 1),
        (Code.UNAVAILABLE, 0, 1),
        (Code.DEADLINE_EXCEEDED, 0, 1),
    ],
)
async def test_a_model_servers_status_passes_with_its_text_and_metadata(
    harness, code, invalid, failed
):
    await harness.open(speaks_grpc=True)

    trailing = (("grpc-status-details-bin", b"\x00rich"), ("why", "so"), ("x-request-id", "y"))
    harness.grpc_backends[0].behave = aborting(code, "Eingabe \u00e4 ist falsch", trailing)
    found, _, text, trailing = await harness.call(
        PREDICT, asking(PREDICT), metadata=(("x-request-id", "mine"),)
    )
    assert (found, text) == (code, "Eingabe \u00e4 ist falsch")
    assert trailing["grpc-status-details-bin"] == b"\x00rich"
    assert (trailing["why"], trailing["x-request-id"]) == ("so", "mine")
    assert (harness.queue.invalid, harness.queue.failed) == (invalid, failed)
    assert harness.queue.response.mean(0.0) is None  # no fast answer


async def test_what_a_call_brings_along_reaches_the_model_server(harness):
    await harness.open(speaks_grpc=True)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    metadata = (
        ("x-request-id", "order-17"),
        ("traceparent", parent),
        ("tracestate", "a=1"),
        ("authorization", "Bearer secret"),
    )
    code, _, _, trailing = await harness.call(PREDICT, asking(PREDICT), metadata=metadata)
    assert (code, trailing["x-request-id"]) == (Code.OK, "order-17")
    seen = dict(harness.grpc_backends[0].seen[0][1])
    assert seen["x-request-id"] == "order-17"
    assert (seen["traceparent"], seen["tracestate"]) == (parent, "a=1")
    assert "authorization" not in seen
    for path, request in ((STATUS, asking(STATUS)), (f"/{OIP}/ServerLive", b""), (PREDICT, b"")):
        _, _, _, trailing = await harness.call(path, request, metadata=metadata)
        assert trailing["x-request-id"] == "order-17"


async def test_a_tab_between_members_of_a_tracestate_fails_nothing(harness):
    await harness.open(speaks_grpc=True)
    client = await http2.connected(harness.grpc_port)  # gRPC's own clients send no tab
    parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    client.begin(PREDICT, (b"traceparent", parent), (b"tracestate", b"a=1\t,\tb=2"))
    client.whole(asking(PREDICT))
    await asyncio.wait_for(client.ended.wait(), 10)
    await client.close()
    seen = dict(harness.grpc_backends[0].seen[0][1])
    assert seen["tracestate"] == "a=1 , b=2"
    assert harness.queue.failed == 0


async def test_a_full_queue_is_resource_exhausted_with_retry_after(harness):
    await harness.open(speaks_grpc=True, max_waiting=2)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    async with harness.channel as channel:
        calls = [
            asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))
            for _ in range(3)
        ]
        await harness.until(lambda: len(harness.queue) == 2)
        code, _, text, trailing = await harness.call(PREDICT, asking(PREDICT), channel=channel)
        assert code is Code.RESOURCE_EXHAUSTED
        assert "m" in text
        assert int(trailing["retry-after"]) >= 1
        backend.gate.set()
        assert [call[0] for call in await asyncio.gather(*calls)] == [Code.OK] * 3


async def test_both_doors_share_one_queue_and_its_limit(harness):
    await harness.open(speaks_grpc=True)
    harness.grpc_backends[0].gate = asyncio.Event()
    grpc_call = asyncio.create_task(harness.call(PREDICT, asking(PREDICT)))
    await harness.until(lambda: harness.grpc_backends[0].running == 1)
    http_call = asyncio.create_task(harness.predict())
    await harness.until(lambda: len(harness.queue) == 1)
    assert harness.backends[0].seen == []
    harness.grpc_backends[0].gate.set()
    assert (await grpc_call)[0] is Code.OK
    assert (await http_call)[0] == 200


async def test_a_deadline_that_passes_in_the_queue_frees_its_place(harness):
    await harness.open(speaks_grpc=True)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    first = asyncio.create_task(harness.call(PREDICT, asking(PREDICT)))
    await harness.until(lambda: backend.running == 1)
    for _ in range(100):  # on a busy machine a call can end before it arrives
        code, _, _, _ = await harness.call(PREDICT, asking(PREDICT), timeout=0.3)
        assert code is Code.DEADLINE_EXCEEDED
        if harness.queue.rejected[Reason.DEADLINE]:
            break
    await harness.until(lambda: not len(harness.queue))
    assert harness.queue.rejected[Reason.DEADLINE] >= 1
    assert harness.queue.cancelled == 0
    backend.gate.set()
    assert (await first)[0] is Code.OK
    assert len(backend.seen) == 1


async def test_what_is_left_of_a_deadline_goes_to_the_model_server_which_keeps_its_slot(harness):
    await harness.open(speaks_grpc=True)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    async with asyncio.timeout(60):
        while not backend.seen:  # a busy machine may need longer than the client waits
            code, _, _, _ = await harness.call(PREDICT, asking(PREDICT), timeout=1.0)
            assert code is Code.DEADLINE_EXCEEDED
    (told,) = [value for key, value in backend.seen[0][1] if key == "x-request-timeout-ms"]
    assert 0 < int(told) < 2000  # what is left of one second, as gRPC keeps time
    await harness.until(lambda: harness.core.live == 0)
    assert len(list(harness.core.running())) == 1  # it computes on, and keeps its slot
    backend.gate.set()
    await harness.until(lambda: not list(harness.core.running()))
    assert (backend.cancelled, harness.queue.failed) == (0, 0)


async def test_a_deadline_months_away_is_one_that_a_model_server_accepts(harness):
    await harness.open(speaks_grpc=True)
    low = (("x-request-priority", "low"),)
    code, _, _, _ = await harness.call(PREDICT, asking(PREDICT), timeout=1e7, metadata=low)
    assert code is Code.OK
    seen = harness.grpc_backends[0].seen[0][1]
    assert [v for k, v in seen if k == "x-request-timeout-ms"] == [str(2**31 - 1)]


async def test_a_deadline_looser_than_the_models_changes_nothing(harness):
    await harness.open(speaks_grpc=True, deadline=5, response_time=5)
    code, _, _, _ = await harness.call(PREDICT, asking(PREDICT), timeout=3600)
    assert code is Code.OK
    assert harness.grpc_backends[0].seen[0][3] < 100  # gateway.backend_timeout, and what gRPC adds


async def test_a_client_that_cancels_leaves_its_slot_to_the_model_server(harness):
    await harness.open(speaks_grpc=True)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    async with harness.channel as channel:
        running = channel.unary_unary(PREDICT)(asking(PREDICT))
        await harness.until(lambda: backend.running == 1)
        waiting = channel.unary_unary(PREDICT)(asking(PREDICT))
        await harness.until(lambda: len(harness.queue) == 1)
        waiting.cancel()
        await harness.until(lambda: len(harness.queue) == 0)
        running.cancel()
        await harness.until(lambda: harness.queue.cancelled == 2)
        assert len(list(harness.core.running())) == 1
        backend.gate.set()
        await harness.until(lambda: not list(harness.core.running()))
    assert harness.core.live == 0
    assert len(backend.seen) == 1


async def test_draining_answers_what_was_admitted_and_sends_the_rest_elsewhere(harness):
    await harness.open(speaks_grpc=True)
    backend, other = harness.grpc_backends[0], GrpcModelServer(harness.grpc_port)
    backend.gate = asyncio.Event()
    async with harness.channel as channel:
        calls = [
            asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))
            for _ in range(3)
        ]
        await harness.until(lambda: len(harness.queue) == 2)
        closing = asyncio.create_task(harness.running.aclose())
        await harness.until(lambda: harness.service.program.refuses)
        await other.start()  # the gateway that takes its place
        harness.stack.push_async_callback(other.stop)
        options = {"channel": channel, "wait_for_ready": True}
        for _ in range(3):
            assert (await harness.call(PREDICT, asking(PREDICT), **options))[0] is Code.OK
        assert len(other.seen) == 3
        assert not closing.done()
        backend.gate.set()
        assert [call[0] for call in await asyncio.gather(*calls)] == [Code.OK] * 3
        await closing
    assert harness.core.live == 0
    assert len(backend.seen) == 3


async def test_draining_waits_for_a_client_that_is_still_sending_its_message(harness):
    await harness.open(speaks_grpc=True)
    whole = asyncio.Event()

    async def messages():
        await whole.wait()
        yield asking(PREDICT)

    async with harness.channel as channel:
        call = asyncio.ensure_future(channel.stream_unary(PREDICT)(messages()))
        await harness.until(lambda: harness.grpc.answering)
        closing = asyncio.create_task(harness.running.aclose())
        await harness.until(lambda: harness.service.program.refuses)
        await asyncio.sleep(1)  # twice as long as calls have that nobody waits for
        whole.set()
        assert await call == asking(PREDICT)
        await closing


async def test_health_of_the_gateway_and_of_models(harness):
    await harness.open(speaks_grpc=True, start=False)
    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    async with harness.channel as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def check(name):
            return (await health.Check(health_pb2.HealthCheckRequest(service=name))).status

        watching = health.Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watching.read()).status == not_serving
        for name in ("", "m", *SERVICES):
            assert await check(name) == not_serving
        for backend in [*harness.backends, *harness.grpc_backends]:
            await backend.start()
        await harness.until(lambda: any(harness.core.executors.of("m")))
        for name in ("", "m", *SERVICES):
            assert await check(name) == serving
        assert (await watching.read()).status == serving
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check("x")
        assert unknown.value.code() is Code.NOT_FOUND
        closing = asyncio.create_task(harness.running.aclose())
        assert (await watching.read()).status == not_serving
        assert await watching.read() is grpc.aio.EOF
        await closing


async def test_reflection_is_what_a_model_server_says(harness):
    await harness.open(speaks_grpc=True)
    asked = reflection_pb2.ServerReflectionRequest
    async with harness.channel as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([asked(list_services=""), asked(file_containing_symbol="grpc.health.v1.Health")])
        )
        listed, described = [answer async for answer in call]
        names = {service.name for service in listed.list_services_response.service}
        assert names == {"grpc.health.v1.Health"}
        (data,) = described.file_descriptor_response.file_descriptor_proto
        assert descriptor_pb2.FileDescriptorProto.FromString(data).package == "grpc.health.v1"
        await harness.grpc_backends[0].stop()
        await harness.backends[0].stop()
        await harness.until(lambda: not any(harness.core.executors.of("m")))
        # Nothing is written: grpc's client calls a write to a call that has ended INTERNAL.
        assert await stub.ServerReflectionInfo().code() is Code.UNAVAILABLE


async def test_a_taken_port_is_named(harness):
    await harness.open(speaks_grpc=True)
    other, admin = free_ports(2)
    gateway = harness.loaded.gateway.model_copy(update={"port": other, "admin_port": admin})
    loaded = harness.loaded.model_copy(update={"gateway": gateway})
    with pytest.raises(
        LaunchError, match=rf"gateway.grpc_port = {harness.grpc_port}: cannot listen"
    ):
        await dispatcher_app.running(loaded).__aenter__()


async def test_dispatchers_that_share_the_clients_port_share_this_one(harness):
    (port,) = free_ports(1)
    await harness.open(speaks_grpc=True)
    servers = [GatewayGrpcServer(harness.service, harness.server, shared=True) for _ in range(2)]
    for server in servers:
        server.bind("127.0.0.1", port)
        await server.start()
    with pytest.raises(OSError, match="in use"):
        GatewayGrpcServer(harness.service, harness.server).bind("127.0.0.1", port)
    for server in servers:
        await server.close(0)


async def test_a_failure_is_in_the_log_with_its_status(harness, caplog):
    await harness.open(speaks_grpc=True)

    harness.grpc_backends[0].behave = aborting(Code.INTERNAL, "boom")
    await harness.call(PREDICT, asking(PREDICT), metadata=(("x-request-id", "r1"),))
    (record,) = [r for r in caplog.records if r.name == "dispatcher.live.request_log"]
    assert (record.request_id, record.outcome, record.reason) == ("r1", "failed", "grpc_13")
    assert record.status == 13


async def test_without_its_port_nobody_imports_grpc():
    """Starting takes no longer for those who do not use it."""
    code = (
        "import sys, dispatcher.live.app; "
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'google')])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert json.loads(out) == []

"""gRPC's own services beside the protocols: health and reflection; deadlines and cancellation."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from roma.serving.server import ModelServer, ServerSettings
from tests.support.waiting import until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
PREDICTION = "tensorflow.serving.PredictionService"


async def states(channel, *names):
    stub = health_pb2_grpc.HealthStub(channel)
    answers = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in names]
    return [answer.status for answer in answers]


async def test_health_while_loading_serving_and_draining(saved_models, tmp_path):
    shutil.copytree(saved_models / "slow_start", tmp_path / "slow")
    extra = tmp_path / "slow/1/assets.extra"
    extra.mkdir()
    (extra / "roma_warmup.json").write_text(json.dumps({"inputs": str(tmp_path)}))
    paths = {"half": saved_models / "half", "slow": tmp_path / "slow"}
    server = ModelServer(ServerSettings(paths, port=0, grpc_port=0))
    await server.start()
    async with (
        grpc.aio.insecure_channel(server.grpc_address) as channel,
        aiohttp.ClientSession(server.url) as session,
    ):

        async def ready(path):
            async with session.get(path) as answer:
                return answer.status, (await answer.json())["ready"]

        watched = {name: watch(channel, name) for name in ("", "slow", "no")}
        await until((tmp_path / "begun").exists)  # half is loaded, slow is inside its warm-up
        assert await states(channel, "half", "slow", "", PREDICTION) == [
            SERVING,
            NOT_SERVING,
            NOT_SERVING,
            NOT_SERVING,
        ]
        assert await ready("/v2/health/ready") == (503, False)
        assert await ready("/v2/models/slow/ready") == (503, False)
        assert await ready("/v2/models/half/ready") == (200, True)
        for name in ("no", "no" * 10_000):
            with pytest.raises(
                grpc.aio.AioRpcError, match="no model or service named 'no"
            ) as refused:
                await states(channel, name)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        (tmp_path / "open").touch()
        await server.loading
        assert await states(channel, "half", "slow", "", PREDICTION) == [SERVING] * 4
        assert await ready("/v2/health/ready") == (200, True)
        assert await ready("/v2/models/slow/ready") == (200, True)
        await until(lambda: watched["slow"][0][-1:] == [SERVING])
        # Watchers do not keep the server from stopping; they see it go.
        assert await server.stop() is False
        for name, expected in (
            ("", [NOT_SERVING, SERVING, NOT_SERVING]),
            ("slow", [NOT_SERVING, SERVING, NOT_SERVING]),
            ("no", [UNKNOWN]),
        ):
            seen, task = watched[name]
            await task
            assert seen == expected


def watch(channel, name):
    """Begin to watch; return the list of states that grows, and the task that ends with it."""
    seen = []
    request = health_pb2.HealthCheckRequest(service=name)
    call = health_pb2_grpc.HealthStub(channel).Watch(request)

    async def follow():
        async for answer in call:
            seen.append(answer.status)  # noqa: PERF401 - others look at it meanwhile

    return seen, asyncio.ensure_future(follow())


async def test_a_model_that_ended_is_not_serving_and_the_server_is(serving):
    async with (
        serving("broken", "half", grpc_port=0) as client,
        grpc.aio.insecure_channel(client.server.grpc_address) as channel,
    ):
        assert await states(channel, "broken", "half", "") == [NOT_SERVING, SERVING, SERVING]


async def test_reflection_describes_the_services(serving):
    def ask(address):
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol(PREDICTION)
            return list(database.get_services()), file

    async with serving("half", grpc_port=0) as client:
        names, file = await asyncio.to_thread(ask, client.server.grpc_address)
    assert set(names) == {
        PREDICTION,
        "tensorflow.serving.ModelService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    (service,) = file.service
    assert {method.name for method in service.method} >= {"Predict", "Classify", "Regress"}


class Gate:
    """Calls of a server of one worker, each of which computes until the gate opens."""

    def __init__(self, session, server, channel, folder):
        self.session, self.server = session, server
        self.channel, self.folder = channel, folder
        self.workers = server._workers

    def body(self, name):
        (self.folder / name).mkdir()
        return {"inputs": str(self.folder / name)}

    async def rest(self, name, headers=None):
        url = self.server.url + "/v1/models/gate:predict"
        async with self.session.post(url, json=self.body(name), headers=headers) as answer:
            return answer.status, await answer.json()

    def grpc(self, name, timeout=None):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

        request = predict_pb2.PredictRequest()
        request.model_spec.name = "gate"
        proto = tf.make_tensor_proto(self.body(name)["inputs"])
        request.inputs["folder"].CopyFrom(proto)
        stub = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        return stub.Predict(request, timeout=timeout)

    def open(self):
        for folder in self.folder.iterdir():
            (folder / "open").touch()

    def computed(self):
        return sorted(
            folder.name for folder in self.folder.iterdir() if (folder / "begun").exists()
        )


@asynccontextmanager
async def started(saved_models, folder):
    server = ModelServer(ServerSettings({"gate": saved_models / "gate"}, port=0, grpc_port=0))
    await server.start()
    await server.loading
    async with (
        aiohttp.ClientSession() as session,
        grpc.aio.insecure_channel(server.grpc_address) as channel,
    ):
        yield Gate(session, server, channel, folder)
    assert not await server.stop()


@pytest.fixture
async def gate(saved_models, tmp_path):
    async with started(saved_models, tmp_path) as one:
        first = asyncio.ensure_future(one.rest("first"))
        try:
            await until((tmp_path / "first/begun").exists)
            yield one
        finally:
            one.open()
        assert await first == (200, {"outputs": True})


async def test_a_request_whose_time_is_over_is_not_computed(gate):
    late = {"error": "The request's time was over before a worker was free"}
    assert await gate.rest("late", {"X-Request-Timeout-Ms": "50"}) == (504, late)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await gate.grpc("late-too", timeout=0.05)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(gate.workers) == 1)
    # Time enough: both wait, and are computed.
    waiting = asyncio.ensure_future(gate.rest("patient", {"X-Request-Timeout-Ms": "2147483647"}))
    call = gate.grpc("patient-too", timeout=600)
    await until(lambda: len(gate.workers) == 3)
    gate.open()
    assert (await waiting)[0] == 200
    assert (await call).outputs["waited"].bool_val == [True]
    assert gate.computed() == ["first", "patient", "patient-too"]


async def test_a_cancelled_call_leaves_its_place(gate):
    call = gate.grpc("cancelled")
    await until(lambda: len(gate.workers) == 2)
    call.cancel()
    await until(lambda: len(gate.workers) == 1)
    gate.open()
    assert gate.computed() == ["first"]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "soon", "2147483648", "9" * 5000])
async def test_a_limit_that_is_no_limit(serving, text):
    async with serving("half") as client:
        url, headers = client.url + "/v1/models/half:predict", {"X-Request-Timeout-Ms": text}
        async with client.session.post(url, data=b"{}", headers=headers) as answer:
            assert answer.status == 400
            error = (await answer.json())["error"]
        assert error == (
            f"X-Request-Timeout-Ms = {text[:32]!r}: expected milliseconds, "
            "an integer from 1 to 2147483647"
        )


async def test_a_grpc_call_in_flight_is_answered_before_the_server_stops(saved_models, tmp_path):
    async with started(saved_models, tmp_path) as gate:
        call = gate.grpc("only")
        await until((tmp_path / "only/begun").exists)
        stopping = asyncio.ensure_future(gate.server.stop())
        await until(lambda: not gate.server._models.is_ready("gate"))
        assert not stopping.done()
        gate.open()
        assert (await call).outputs["waited"].bool_val == [True]
        assert await stopping is False

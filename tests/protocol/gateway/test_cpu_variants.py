"""Variants on CPU executables: the model server is asked for the variant that a policy chose."""

import asyncio

import pytest

from dispatcher.live.grpc import wire
from dispatcher.live.grpc.methods import OIP, PREDICTION
from dispatcher.schedulers import registry
from tests.protocol.gateway.test_grpc import asking
from tests.support.by_load import ByLoad
from tests.support.waiting import until


@pytest.fixture
async def gateway(harness, monkeypatch):
    monkeypatch.setitem(registry.CPU, "balance", ByLoad)
    return await harness.open(speaks_grpc=True)


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/v1/models/m:predict", "/v1/models/good:predict"),
        ("/v1/models/m/versions/7:classify", "/v1/models/good/versions/7:classify"),
        ("/v1/models/m/labels/m:predict", "/v1/models/good/labels/m:predict"),
        ("/v2/models/m/infer", "/v2/models/good/infer"),
    ],
)
async def test_its_path_names_the_variant_and_its_bytes_are_the_clients(gateway, path, seen):
    status, body, _ = await gateway.predict(b'{"instances": ["m"]}', path=path)
    assert (status, body) == (200, b'{"instances": ["m"]}')
    ((asked, _, sent),) = gateway.backends[0].seen
    assert (asked, sent) == (seen, body)


async def test_requests_that_wait_get_the_variant_for_load(gateway):
    backend = gateway.backends[0]
    backend.gate = asyncio.Event()
    asked = [asyncio.ensure_future(gateway.predict()) for _ in range(4)]
    await until(lambda: len(gateway.queue) == 3)
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 4
    models = [path.removeprefix("/v1/models/") for path, _, _ in backend.seen]
    assert models == ["good:predict", "fast:predict", "fast:predict", "good:predict"]
    (executor,) = gateway.core.executors
    assert None not in {executor.expected(name) for name in ("m", "good", "fast")}


@pytest.mark.parametrize("call", ["Predict", "Classify", "Regress"])
async def test_a_call_names_the_variant_behind_its_own_bytes(gateway, call):
    path = f"/{PREDICTION}/{call}"
    await gateway.call(path, asking(path))
    ((_, _, message, _),) = gateway.grpc_backends[0].seen
    assert message.startswith(asking(path))
    assert wire.model_spec(message).name == "good"


async def test_all_tasks_name_the_variant(gateway):
    path = f"/{PREDICTION}/MultiInference"
    inputs = b"\x12\xac\x02" + b"x" * 300
    await gateway.call(path, asking(path) * 2 + inputs)
    ((_, _, message, _),) = gateway.grpc_backends[0].seen
    assert [spec.name for spec in wire.task_specs(message)] == ["good", "good"]
    assert message.endswith(inputs)


async def test_the_open_inference_protocols_message_names_the_variant(gateway):
    path = f"/{OIP}/ModelInfer"
    await gateway.call(path, asking(path))
    ((_, _, message, _),) = gateway.grpc_backends[0].seen
    assert message.startswith(asking(path))
    assert wire.name_and_version(message) == ("good", "abc")

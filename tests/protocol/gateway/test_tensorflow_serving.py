"""Clients written for TensorFlow Serving find its words, paths and addresses at the gateway."""

import asyncio
import json
import socket
import stat
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.live import lookups
from dispatcher.live.grpc.methods import MODEL, OIP, PREDICTION
from roma.config import schema
from roma.config.sockets import for_grpc
from roma.domain.errors import ConfigError, LaunchError
from roma.security import api_keys
from tests.protocol.gateway.test_grpc import chunk
from tests.support.keys import keys_file

PREDICT, MULTI = f"/{PREDICTION}/Predict", f"/{PREDICTION}/MultiInference"
METADATA, STATUS = f"/{PREDICTION}/GetModelMetadata", f"/{MODEL}/GetModelStatus"
RELOAD = f"/{MODEL}/HandleReloadConfigRequest"
METRICS = "/monitoring/prometheus/metrics"
Code = grpc.StatusCode

NAMED = chunk(1, chunk(1, b"m"))
NAMELESS = chunk(1, chunk(3, b"signature"))
NO_NAME = "ModelSpec has no name specified."
TOKEN = api_keys.new_token("aaaaaaaa")


@pytest.mark.parametrize(
    ("path", "request_", "code", "text"),
    [
        (PREDICT, b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (PREDICT, NAMELESS, Code.INVALID_ARGUMENT, NO_NAME),
        (METADATA, b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (METADATA, NAMELESS, Code.INVALID_ARGUMENT, NO_NAME),
        (MULTI, b"", Code.INVALID_ARGUMENT, NO_NAME),
        (MULTI, chunk(1, b""), Code.INVALID_ARGUMENT, NO_NAME),
        (STATUS, b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (STATUS, NAMELESS, Code.NOT_FOUND, "Could not find any versions of model "),
    ],
)
async def test_a_call_without_a_model_is_told_so(harness, path, request_, code, text):
    await harness.open(speaks_grpc=True)
    assert (await harness.call(path, request_))[:3] == (code, b"", text)
    assert harness.grpc_backends[0].seen == []


async def test_the_status_of_a_model_that_loads_is_the_model_servers(harness):
    await harness.open(speaks_grpc=True, start=False)
    harness.backends[0].available = False
    await harness.backends[0].start()
    await harness.grpc_backends[0].start()
    status, body = await harness.get("/v1/models/m")
    assert status == 200
    assert json.loads(body)["model_version_status"][0]["state"] == "LOADING"
    async with asyncio.timeout(60):  # a channel that failed before connects again by and by
        while (await harness.call(STATUS, NAMED))[:2] != (Code.OK, NAMED):
            await asyncio.sleep(0.05)
    # All else waits for a model that is ready.
    assert (await harness.get("/v1/models/m/metadata"))[0] == 503
    assert (await harness.predict())[0] == 503
    assert (await harness.call(METADATA, NAMED))[0] is Code.UNAVAILABLE
    assert not any(harness.core.executors.of("m"))


async def test_without_an_answer_nobody_is_ready(harness, monkeypatch):
    await harness.open(speaks_grpc=True, start=False, timeout=600)
    hanging = harness.stack.enter_context(socket.socket())
    hanging.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    hanging.bind(("127.0.0.1", harness.backends[0].port))
    for _ in range(2):
        async with asyncio.timeout(60):
            status, body = await harness.get("/v1/models/m")
        refusal = (503, {"error": "no executable of model m is ready"})
        assert (status, json.loads(body)) == refusal
        assert (await harness.call(STATUS, NAMED))[0] is Code.UNAVAILABLE
        # One that hangs, as the next time round, holds nobody up.
        monkeypatch.setattr(lookups, "LOADING_TIMEOUT", 0.05)
        hanging.listen()


async def test_a_model_is_available_once_requests_are_taken_and_no_sooner(harness):
    await harness.open(speaks_grpc=True)
    executor = harness.core.executors["m.0@local"]
    answer = b"\x0a\x04\x08\x01\x10\x1e"  # version 1 is AVAILABLE

    async def behave(request, context):
        return answer

    harness.grpc_backends[0].behave = behave
    assert (await harness.get("/v1/models/m"))[0] == 200
    assert (await harness.call(STATUS, NAMED))[:2] == (Code.OK, answer)
    harness.service.driver.on_lost("m.0@local", "as before its monitor has looked")
    status, _ = await harness.get("/v1/models/m")
    assert status == 503 or executor.live
    harness.service.driver.on_lost("m.0@local", "again")
    code = (await harness.call(STATUS, NAMED))[0]
    assert code is Code.UNAVAILABLE or executor.live


async def test_an_unknown_model_is_not_ready(harness):
    await harness.open(speaks_grpc=True)
    ready = f"/{OIP}/ModelReady"
    assert (await harness.call(ready, chunk(1, b"m")))[:2] == (Code.OK, chunk(1, b"m"))
    assert (await harness.call(ready, chunk(1, b"x")))[:2] == (Code.OK, b"")
    assert (await harness.call(ready, b""))[0] is Code.INVALID_ARGUMENT
    # Nor is one that nobody serves now.
    await harness.backends[0].stop()
    await harness.until(lambda: not any(harness.core.executors.of("m")))
    assert (await harness.call(ready, chunk(1, b"m")))[:2] == (Code.OK, b"")


async def test_a_reload_names_the_file_that_says_what_is_served(harness):
    await harness.open(speaks_grpc=True)
    code, _, text, _ = await harness.call(RELOAD, b"")
    assert code is Code.UNIMPLEMENTED
    assert text == (
        "HandleReloadConfigRequest: the models are those of roma.yaml: change the file, or use "
        "`roma models`"
    )


async def test_clients_read_metrics_where_they_may(harness):
    await harness.open(gateway="client_metrics: true")
    assert (await harness.predict())[0] == 200
    async with harness.session.get(harness.url + METRICS) as answer:
        assert (answer.status, answer.content_type) == (200, "text/plain")
        text = await answer.text()
    found = [
        (sample.labels["model"], sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "roma_requests_total" and sample.value
    ]
    assert found == [("m", 1.0)]
    async with harness.session.post(harness.url + METRICS) as answer:
        assert answer.status == 404


async def test_clients_read_no_metrics_by_default(harness):
    await harness.open()
    assert (await harness.get(METRICS))[0] == 404


async def test_metrics_and_reloads_take_a_key(harness, tmp_path):
    keys = keys_file(tmp_path, {TOKEN: {}})
    await harness.open(speaks_grpc=True, gateway=f"client_metrics: true, keys: {keys}")
    shown = {"Authorization": f"Bearer {TOKEN}"}
    assert (await harness.get(METRICS))[0] == 401
    async with harness.session.get(harness.url + METRICS, headers=shown) as answer:
        assert answer.status == 200
    assert (await harness.call(RELOAD, b""))[0] is Code.UNAUTHENTICATED
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    assert (await harness.call(RELOAD, b"", metadata=metadata))[0] is Code.UNIMPLEMENTED


def at(path):
    return grpc.aio.insecure_channel(
        for_grpc(path), options=[("grpc.use_local_subchannel_pool", 1)]
    )


async def test_grpc_by_a_unix_socket(harness, sockets):
    path = sockets / "grpc%41.sock"  # gRPC's own addresses escape bytes so
    await harness.open(speaks_grpc=True, gateway=f"grpc_socket: {path}")
    assert stat.S_ISSOCK(path.stat().st_mode)
    async with at(path) as channel:
        assert (await harness.call(PREDICT, NAMED, channel=channel))[:2] == (Code.OK, NAMED)
    assert (await harness.call(PREDICT, NAMED))[:2] == (Code.OK, NAMED)
    await harness.close_gateway()
    harness.idle_connection[1].close()
    assert not path.exists()


async def test_a_unix_socket_alone_is_grpc_too(harness, sockets):
    path = sockets / "grpc.sock"
    await harness.open(with_grpc=False, gateway=f"grpc_socket: {path}")
    async with at(path) as channel:
        code, _, text, _ = await harness.call(PREDICT, NAMED, channel=channel)
    assert code is Code.UNIMPLEMENTED  # the stand-in has no gRPC address
    assert (
        "has no gRPC address: set `grpc` of the executable, or grpc_offset or kubernetes.grpc_port"
        in text
    )


async def test_keys_hold_at_the_unix_socket(harness, sockets, tmp_path):
    path, keys = sockets / "grpc.sock", keys_file(tmp_path, {TOKEN: {}})
    await harness.open(speaks_grpc=True, gateway=f"grpc_socket: {path}, keys: {keys}")
    async with at(path) as channel:
        assert (await harness.call(PREDICT, NAMED, channel=channel))[0] is Code.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {TOKEN}"),)
        found = await harness.call(PREDICT, NAMED, channel=channel, metadata=metadata)
    assert found[0] is Code.OK


async def test_a_unix_socket_that_answers_is_not_taken_over(harness, sockets):
    path = sockets / "grpc.sock"
    server = harness.stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen()
    with pytest.raises(
        LaunchError, match=rf"grpc_socket = {path}: cannot listen there: address already in use"
    ):
        await harness.open(gateway=f"grpc_socket: {path}")
    assert path.exists()


async def test_a_unix_socket_without_a_place_is_named(harness, sockets):
    path = sockets / "no/grpc.sock"
    with pytest.raises(
        LaunchError, match=rf"grpc_socket = {path}: cannot listen there: no such file or directory"
    ):
        await harness.open(gateway=f"grpc_socket: {path}")


@pytest.mark.parametrize(
    ("gateway", "text"),
    [
        ("grpc_socket: relative.sock", "grpc_socket"),
        (f"grpc_socket: /{'x' * 107}", r"a path of ≤ 107 bytes, the kernel's bound \(it has 108\)"),
        ("grpc_socket: /run/g.sock, processes: 2", r"must be absent where processes > 1 \(2\)"),
    ],
)
def test_a_unix_socket_that_cannot_be_is_named_when_the_file_is_read(gateway, text):
    example = Path("examples/roma.yaml").read_text().partition("gateway:")[0]
    with pytest.raises(ConfigError, match=text):
        schema.parse(example + f"gateway: {{{gateway}}}\n")

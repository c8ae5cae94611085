"""The Open Inference Protocol's REST paths, and the document that describes every path."""

import asyncio
import json
import re

import pytest
from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator

from dispatcher.live.http import routes

INFER = "/v2/models/m/infer"


def error(body):
    return json.loads(body)["error"]


@pytest.mark.parametrize("path", [INFER, "/v2/models/m/versions/3/infer"])
async def test_an_inference_passes_untouched_both_ways_and_waits_in_the_queue(harness, path):
    await harness.open()
    head = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}'
    sent, answer = head + b"\x00\x00\x80?", b'{"outputs": []}\xff\xfe'

    async def infer(request, body):
        headers = {"Inference-Header-Content-Length": "15"}
        return web.Response(body=answer, headers=headers, content_type="application/octet-stream")

    harness.backends[0].behave = infer
    status, body, headers = await harness.predict(
        sent,
        path=path,
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        },
    )
    assert (status, body) == (200, answer)
    assert headers["Inference-Header-Content-Length"] == "15"
    assert headers["Content-Type"] == "application/octet-stream"
    seen_path, seen_headers, seen = harness.backends[0].seen[0]
    assert (seen_path, seen) == (path, sent)
    assert seen_headers["Inference-Header-Content-Length"] == str(len(head))
    assert seen_headers["Content-Type"] == "application/octet-stream"
    assert sum(harness.queue.completed.values()) == 1


@pytest.mark.parametrize("middle", ["", "/versions/3"])
@pytest.mark.parametrize("rest", ["", "/ready"])
async def test_look_ups_pass_to_the_executable(harness, middle, rest):
    await harness.open()
    path = f"/v2/models/m{middle}{rest}"
    status, body = await harness.get(path)
    assert (status, json.loads(body)["path"]) == (200, path)
    assert harness.queue.arrivals == 0


async def test_what_is_asked_of_the_server_the_gateway_answers(harness):
    await harness.open(start=False)
    status, body = await harness.get("/v2")
    found = json.loads(body)
    assert (status, found["name"], found["extensions"]) == (200, "roma", ["binary_tensor_data"])
    assert re.match(r"\d+\.\d+", found["version"])
    assert await harness.get("/v2/health/live") == (200, b'{"live":true}')
    status, body = await harness.get("/v2/health/ready")
    assert (status, json.loads(body)["ready"]) == (503, False)
    assert error(body) == "no executable is ready for: m"
    await harness.backends[0].start()
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert await harness.get("/v2/health/ready") == (200, b'{"ready":true}')


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("POST", "/v2/models/x/infer", "Model not found: x"),
        ("GET", "/v2/models/x", "Model not found: x"),
        ("GET", "/v2/models/x/versions/1/ready", "Model not found: x"),
        ("POST", "/v2/models/m", "Not found: POST /v2/models/m"),
        ("GET", INFER, f"Not found: GET {INFER}"),
        ("GET", "/v2/models/m/magic", "Not found: GET /v2/models/m/magic"),
        ("GET", "/v2/models/m:predict", "Not found: GET /v2/models/m:predict"),
        ("POST", "/v2", "Not found: POST /v2"),
        ("GET", "/v2/", "Not found: GET /v2/"),
        ("GET", "/v2/health/", "Not found: GET /v2/health/"),
        ("GET", "/v20", "Not found: /v20"),
    ],
)
async def test_what_there_is_not_is_404_in_the_protocols_shape(harness, method, path, message):
    await harness.open()
    async with harness.session.request(method, harness.url + path, data=b"{}") as response:
        assert (response.status, error(await response.read())) == (404, message)
    assert harness.backends[0].seen == []


async def test_overload_and_deadlines_are_as_for_the_other_paths(harness):
    await harness.open(max_waiting=1)
    harness.backends[0].gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict(path=INFER)) for _ in range(2)]
    await harness.until(lambda: len(harness.queue) == 1)
    status, body, headers = await harness.predict(path=INFER)
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    harness.backends[0].gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]


async def test_the_document_is_valid_and_names_every_path_that_is_served(harness):
    await harness.open(gateway="client_metrics: true")
    async with harness.session.get(harness.url + "/openapi.json") as response:
        assert response.content_type == "application/json"
        document = await response.json()
    OpenAPIV31SpecValidator(document).validate()
    values = {"model": "m", "version": "3", "label": "stable"}
    for template, item in document["paths"].items():
        (method,) = {"get", "post"} & item.keys()
        path = template.format(**values)
        async with harness.session.request(method, harness.url + path, data=b"{}") as response:
            told = await response.read()
            # A stand-in without labels: what matters is that the gateway has such a path.
            assert response.status != 404 or b"error" not in told, (template, told)
            assert str(response.status) in item[method]["responses"] or (
                "default" in item[method]["responses"]
            )
        route = routes.parse(method.upper(), path)
        if route is not None:
            assert route.template == template
            assert route.is_inference == (method == "post")


async def test_the_document_has_every_path_of_the_router(harness):
    await harness.open()
    document = json.loads((await harness.get("/openapi.json"))[1])
    middles = ["", "/versions/{version}"]
    v1 = [f"/v1/models/{{model}}{m}" for m in [*middles, "/labels/{label}"]]
    v2 = [f"/v2/models/{{model}}{m}" for m in middles]
    expected = {
        f"{base}{rest}"
        for base in v1
        for rest in ("", "/metadata", ":predict", ":classify", ":regress")
    }
    expected |= {f"{base}{rest}" for base in v2 for rest in ("", "/ready", "/infer")}
    expected |= {"/v2", "/v2/health/live", "/v2/health/ready"}
    expected |= {"/healthz", "/readyz", "/openapi.json", "/monitoring/prometheus/metrics"}
    assert document["paths"].keys() == expected

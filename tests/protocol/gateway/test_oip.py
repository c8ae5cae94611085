"""The Open Inference Protocol's REST paths, and the document that describes every path."""

import json
import re

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from dispatcher.live.http import routes

INFER = "/v2/models/m/infer"


def error(body):
    return json.loads(body)["error"]


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

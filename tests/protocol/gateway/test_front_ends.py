"""Conformance of the HTTP front ends: the fast server, and the endpoint as an aiohttp application."""

import asyncio
import errno
import gzip
import json
import socket

import aiohttp
import pytest
from aiohttp import web

import roma
from dispatcher.live.aiohttp_endpoint import ENDPOINT, _response
from dispatcher.live.http.messages import Response
from roma.domain.errors import ConfigError, LaunchError
from roma.security import api_keys
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import AiohttpHarness, answering
from tests.support.handler import Passing
from tests.support.keys import keys_file
from tests.support.waiting import until

PREDICT, INFER = "/v1/models/m:predict", "/v2/models/m/infer"
FILE = """
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{cores: 2, backend: static, executables: [{{url: 'http://127.0.0.1:1', model: m}}]}}]
gateway: {{admin_port: {admin}}}
"""


def error_of(answer):
    return json.loads(answer[1])["error"]


@pytest.mark.parametrize(
    "path",
    [
        PREDICT,
        "/v1/models/m:regress",
        "/v1/models/m/versions/3:classify",
        "/v1/models/m/labels/stable:predict",
        INFER,
        "/v2/models/m/versions/3/infer",
    ],
)
async def test_an_inference_passes_untouched_both_ways(front_end, path):
    async def behave(request, body):
        headers = {"Inference-Header-Content-Length": "7"}
        return web.Response(
            status=201, body=b"\xff\xfe", content_type="application/octet-stream", headers=headers
        )

    await front_end.open()
    front_end.backends[0].behave = behave
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "2"}
    status, body, answered = await front_end.predict(b"{}\x00\xff", path, headers=headers)
    assert (status, body) == (201, b"\xff\xfe")
    assert answered["Content-Type"] == "application/octet-stream"
    assert answered["Inference-Header-Content-Length"] == "7"
    ((seen, got, sent),) = front_end.backends[0].seen
    assert (seen, sent) == (path, b"{}\x00\xff")
    assert {name: got[name] for name in headers} == headers
    assert sum(front_end.queue.completed.values()) == 1


async def test_compressed_bodies_arrive_as_what_they_are(front_end):
    async def behave(request, body):
        return web.Response(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})

    await front_end.open()
    front_end.backends[0].behave = behave
    packed = gzip.compress(b"[1]" * 100)
    status, body, headers = await front_end.predict(packed, headers={"Content-Encoding": "gzip"})
    assert (status, body, headers["Content-Encoding"]) == (200, b"[1]" * 100, "gzip")
    ((_, _, at_backend),) = front_end.backends[0].seen
    assert at_backend == b"[1]" * 100  # decoded by the fake model server or on the way


async def test_a_body_that_is_not_compressed_as_it_says_is_400(front_end):
    async def behave(request, body):
        raise AssertionError("a model server that decodes what it gets")

    await front_end.open()
    front_end.backends[0].behave = behave
    headers = {"Content-Encoding": "gzip"}
    status, body, _ = await front_end.predict(b"not gzip", headers=headers)
    assert status in (400, 500)  # 500: this fake model server's own answer
    assert front_end.queue.arrivals == (status == 500)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", PREDICT, 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz?verbose", 200),
        ("GET", "/v2", 200),
        ("GET", "/v1/models", 400),
        ("GET", "?/healthz", 404),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "HTTP", "https"])
async def test_the_absolute_form_of_a_target_is_understood(front_end, scheme, method, path, status):
    await front_end.open()
    prefix = getattr(front_end, "prefix", "")
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    target = f"{scheme}://localhost:1{prefix}{path}"
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: localhost:1\r\n".encode())
    writer.write(b"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/v1/models/x:predict", 404, "Servable not found for request: Latest(x)"),
        (
            "POST",
            "/v1/models/x/versions/7:predict",
            404,
            "Servable not found for request: Specific(x, 7)",
        ),
        ("GET", "/v1/models/x", 404, "Could not find any versions of model x"),
        ("GET", "/v1/models/x/metadata", 404, "Could not find any versions of model x"),
        ("GET", "/v2/models/x/ready", 404, "Model not found: x"),
        *(
            (*request.split(), 400, f"Malformed request: {request}")
            for request in (
                f"GET {PREDICT}",
                "POST /v1/models/m",
                "POST /v1/models/m:magic",
                "POST /v1/models/m/versions/x:predict",
                "POST /v1/models/a%2fb:predict",
                "POST /v1/models",
                "GET /v1/models/",
                "GET /v1/models:predict",
                "DELETE /v1/models/m",
                "GET /v1/",
            )
        ),
        *(
            ("GET", f"/v1/models{rest}", 400, "Missing model name in request.")
            for rest in ("", "/versions/1", "/versions/1/metadata", "/labels/a", "?a=b")
        ),
        ("GET", "/v1", 404, "Not found: /v1"),
        ("GET", "/nothing?x=1", 404, "Not found: /nothing"),
    ],
)
async def test_what_is_not_served_is_refused_in_the_same_words(
    front_end, method, path, status, text
):
    await front_end.open()
    url = aiohttp.client.URL(front_end.url + path, encoded=True)
    async with front_end.session.request(method, url, data=b"{}") as response:
        assert (response.status, (await response.json())["error"]) == (status, text)
        assert response.headers["Content-Type"] == "application/json"
    assert front_end.backends[0].seen == []


async def test_what_needs_no_inference_is_answered(front_end):
    await front_end.open()
    assert await front_end.get("/healthz") == (200, b"ok")
    assert (await front_end.get("/readyz"))[0] == 200
    assert json.loads((await front_end.get("/v2"))[1])["name"]
    assert json.loads((await front_end.get("/openapi.json"))[1])["openapi"]
    metadata = await front_end.get("/v1/models/m/metadata")
    assert metadata == (200, b'{"model_spec": {"name": "m"}}')
    (version,) = json.loads((await front_end.get("/v1/models/m"))[1])["model_version_status"]
    assert version["state"] == "AVAILABLE"
    for path, length in (("/healthz", "2"), ("/v2/health/live", "13")):
        async with front_end.session.head(front_end.url + path) as response:
            assert (response.status, response.headers["Content-Length"]) == (200, length)
            assert await response.read() == b""


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_bound_is_413(front_end, is_chunked):
    async def parts():
        for _ in range(30):
            yield bytes(100)

    await front_end.open(max_body=2000)
    answer = await front_end.predict(parts() if is_chunked else bytes(2001))
    assert (answer[0], error_of(answer)) == (413, "request body is larger than 2000 bytes")
    assert front_end.backends[0].seen == []
    assert (await front_end.predict(bytes(2000)))[0] == 200


async def test_a_body_that_never_comes_is_408(front_end):
    await front_end.open(limits="{body_timeout: 0.3}")
    answered = asyncio.get_running_loop().create_future()

    async def parts():
        yield b"["
        await asyncio.wait([answered], timeout=20)

    answer = await front_end.predict(parts())
    answered.set_result(None)
    assert (answer[0], error_of(answer)) == (408, "request body took longer than 0.3 s")
    assert front_end.core.live == 0


async def test_bodies_that_come_slowly_count_from_their_first_byte(front_end):
    await front_end.open(max_body=2 << 20, limits="{buffered_bytes: 4194304}")
    released = asyncio.get_running_loop().create_future()

    async def parts():
        yield bytes(3 << 20 >> 1)
        await asyncio.wait([released], timeout=20)

    slow = [asyncio.create_task(front_end.predict(parts())) for _ in range(4)]
    done, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result()[0] for task in done} == {503}
    released.set_result(None)
    assert {(await task)[0] for task in slow} == {200, 503}
    await front_end.until(lambda: front_end.server.buffered == 0)


async def test_what_needs_no_body_to_be_refused_is_refused_before_it(front_end):
    await front_end.open(max_body=2000)
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    path = front_end.url.partition(str(front_end.port))[2] + PREDICT
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2001\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()


async def test_a_coding_that_nobody_here_knows_passes(front_end):
    await front_end.open()
    assert (await front_end.predict(b"x", headers={"Content-Encoding": "snappy"}))[0] == 200
    ((_, headers, body),) = front_end.backends[0].seen
    assert (headers["Content-Encoding"], body) == ("snappy", b"x")


@pytest.mark.parametrize("where", ["check_before_body", "handle"])
async def test_a_bug_costs_one_answer(front_end, where, caplog):
    await front_end.open()
    handler = front_end.server.handler

    class Broken(Passing):
        def _break(self, *_):
            front_end.server.handler = handler
            raise ZeroDivisionError

    setattr(Broken, where, Broken._break)
    front_end.server.handler = Broken(handler)
    answer = await front_end.predict()
    assert (answer[0], error_of(answer)) == (500, "Internal error")
    assert (await front_end.predict())[0] == 200
    assert "ZeroDivisionError" in caplog.text


async def test_a_client_that_goes_with_half_a_body_is_no_error(front_end, caplog):
    await front_end.open()
    path = front_end.url.partition(str(front_end.port))[2] + PREDICT
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
    await asyncio.sleep(0.2)
    assert (await front_end.predict())[0] == 200
    assert "Traceback" not in caplog.text


async def test_request_options_are_checked_and_echoed(front_end):
    await front_end.open()
    answer = await front_end.predict(headers={"X-Request-Id": "abc", "X-Request-Timeout-Ms": "0"})
    assert (answer[0], answer[2]["X-Request-Id"]) == (400, "abc")
    assert error_of(answer).startswith("X-Request-Timeout-Ms: 0: must be")
    answer = await front_end.predict(headers={"X-Request-Id": "abc", "X-Request-Priority": "low"})
    assert (answer[0], answer[2]["X-Request-Id"]) == (200, "abc")
    assert front_end.core.low_priority["m"].arrivals == 1


@pytest.mark.parametrize("path", [PREDICT, INFER])
async def test_a_full_queue_is_429_and_says_when_to_return(front_end, path):
    await front_end.open(max_waiting=1)
    first = await front_end.held()
    second = asyncio.create_task(front_end.predict())
    await front_end.until(lambda: len(front_end.queue) == 1)
    answer = await front_end.predict(path=path)
    assert (answer[0], error_of(answer)) == (429, "1 requests of model m wait (bound 1)")
    assert int(answer[2]["Retry-After"]) >= 1
    front_end.backends[0].gate.set()
    assert [(await task)[0] for task in (first, second)] == [200, 200]


@pytest.mark.parametrize(("status", "counted"), [(400, (1, 0)), (500, (0, 1))])
async def test_a_fault_of_the_model_server_is_told(front_end, status, counted):
    await front_end.open()
    front_end.backends[0].behave = answering({"error": "bad input"}, status)
    answer = await front_end.predict()
    assert (answer[0], error_of(answer)) == (status, "bad input")
    assert (front_end.queue.invalid, front_end.queue.failed) == counted
    assert front_end.queue.response.mean(0.0) is None  # no fast answer
    await front_end.backends[0].stop()
    assert (await front_end.predict())[0] in (502, 503)
    await front_end.until(lambda: not any(e.live for e in front_end.core.executors))
    answer = await front_end.predict()
    assert (answer[0], error_of(answer)) == (503, "no executable of model m is ready")
    assert answer[2]["Retry-After"] == "1"
    assert (await front_end.get("/v1/models/m"))[0] == 503


async def test_a_client_that_hangs_up_gives_its_place_back(front_end):
    await front_end.open(max_waiting=5)
    first = await front_end.held()
    async with aiohttp.ClientSession() as session:
        second = asyncio.create_task(session.post(front_end.url + PREDICT, data=b"[2]"))
        await front_end.until(lambda: len(front_end.queue) == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    await front_end.until(lambda: len(front_end.queue) == 0)
    assert front_end.queue.cancelled == 1
    front_end.backends[0].gate.set()
    assert (await first)[0] == 200
    assert len(front_end.backends[0].seen) == 1


async def test_names_and_pages_that_are_not_ours_are_refused(front_end):
    page = "https://app.example"
    await front_end.open(names="[roma.example]", gateway=f"cors_origins: ['{page}']")
    answers = [
        await front_end.predict(headers={"Host": host})
        for host in ("roma.example", "evil.example", "a b")
    ]
    assert [status for status, *_ in answers] == [200, 421, 400]
    status, _, headers = await front_end.predict(headers={"Origin": page})
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, page)
    assert (await front_end.predict(headers={"Origin": "https://evil.example"}))[0] == 403
    asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
    async with front_end.session.options(front_end.url + PREDICT, headers=asked) as response:
        assert response.status == 204
        assert "POST" in response.headers["Access-Control-Allow-Methods"]


async def test_keys_are_required_and_their_models_are_bounded(front_end, tmp_path):
    tokens = {model: api_keys.new_token(model[0] * 8) for model in ("m", "other")}
    keys = keys_file(tmp_path, {token: {"models": [model]} for model, token in tokens.items()})
    await front_end.open(gateway=f"keys: {keys}")
    without = await front_end.predict()
    assert (without[0], without[2]["WWW-Authenticate"][:6]) == (401, "Bearer")
    found = [
        (await front_end.predict(headers={"Authorization": f"Bearer {token}"}))[0]
        for token in (tokens["m"], tokens["other"], api_keys.new_token("x" * 8))
    ]
    assert found == [200, 403, 401]
    assert (await front_end.get("/healthz"))[0] == 200


async def test_what_runs_is_answered_before_the_end(front_end):
    await front_end.open()
    running = await front_end.held()
    ending = asyncio.create_task(front_end.running.aclose())
    await asyncio.sleep(0.05)
    front_end.backends[0].gate.set()
    assert (await running)[0] == 200
    await ending


async def test_a_port_that_is_taken_ends_the_start_of_the_program(tmp_path):
    file = tmp_path / "roma.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text(FILE.format(admin=taken.getsockname()[1]))
        runner = web.AppRunner(roma.aiohttp_app(file))
        with pytest.raises(LaunchError, match=r"gateway\.admin_port = "):
            await runner.setup()
        await runner.cleanup()


async def test_a_start_that_is_given_up_leaves_nothing(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.format(admin=free_ports(1)[0]))
    runner = web.AppRunner(roma.aiohttp_app(file))
    starting = asyncio.create_task(runner.setup())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await runner.cleanup()
    others = [t for t in asyncio.all_tasks() if "aiohttp_endpoint" in repr(t.get_coro())]
    assert others == []


def test_a_header_of_a_model_server_stays_one_header():
    odd = Response(200, "text/plain", None, b"", "Retry-After: 7\x85X-Other: 1\x0bX-Third: 2\r\n")
    headers = _response(odd, b"").headers
    assert "X-Other" not in headers
    assert "X-Third" not in headers
    assert headers["Retry-After"].startswith("7")


async def test_an_application_may_be_started_again(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.format(admin=free_ports(1)[0]))
    app = roma.aiohttp_app(file)
    runner, endpoint = web.AppRunner(app), app[ENDPOINT]
    for _ in range(2):
        await runner.setup()
        await asyncio.sleep(0.1)
        assert endpoint.serving is not None
        await runner.cleanup()
        assert endpoint.serving is None


async def test_a_body_that_a_middleware_has_read_arrives():
    @web.middleware
    async def reading(request, handler):
        await request.read()
        return await handler(request)

    async def parts():
        yield bytes(2001)

    harness = AiohttpHarness("/inference", [reading])
    async with harness.stack:
        await harness.open(max_body=2000)
        sent = gzip.compress(b"[1, 2]")
        assert (await harness.predict(b"[1]"))[:2] == (200, b"[1]")
        answer = await harness.predict(sent, headers={"Content-Encoding": "gzip"})
        assert answer[:2] == (200, b"[1, 2]")
        assert (await harness.predict(parts()))[0] == 413
        assert harness.server.buffered == 0


async def test_a_connection_that_breaks_in_a_body_is_no_bug(caplog):
    harness = AiohttpHarness("")
    async with harness.stack:
        await harness.open()
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n1"
        writer.write(head.encode())
        await harness.until(lambda: harness.server.buffered == 1)
        (connection,) = harness.runner.server.connections
        connection.connection_lost(OSError(errno.EHOSTUNREACH, "No route to host"))
        await harness.until(lambda: harness.server.buffered == 0)
        writer.close()
    assert "Traceback" not in caplog.text


async def test_what_waits_when_the_dispatcher_ends_is_answered_503(tmp_path):
    harness = AiohttpHarness("")
    async with harness.stack:
        await harness.open()
        harness.backends[0].gate = asyncio.Event()
        calls = [asyncio.create_task(harness.predict()) for _ in range(2)]
        await harness.until(lambda: len(harness.queue) == 1 and harness.backends[0].running == 1)
        harness.endpoint.serving.registry.stop = broken
        harness.endpoint.stop.set()
        statuses = sorted([(await call)[0] for call in calls])
        assert statuses[-1] in (502, 503)
        assert set(statuses) <= {502, 503}


async def test_a_dispatcher_that_ends_by_a_bug_answers_503(tmp_path, caplog):
    file = tmp_path / "roma.yaml"
    port, admin = free_ports(2)
    file.write_text(FILE.format(admin=admin))
    app = roma.aiohttp_app(file)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        app[ENDPOINT].serving.registry.stop = broken
        app[ENDPOINT].stop.set()
        await until(lambda: app[ENDPOINT].serving is None, 10)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as response,
        ):
            assert response.status == 503
            assert (await response.json())["error"] == "the dispatcher is not running"
    finally:
        await runner.cleanup()
    assert "the dispatcher ended" in caplog.text


def broken(*_):
    raise ZeroDivisionError


def test_several_processes_have_no_place_in_one_program(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(
        "models: {m: {sla: {response_time: 1}, path: /tmp}}\n"
        "workers: [{cores: 2}]\ngateway: {processes: 2}\n"
    )
    with pytest.raises(ConfigError, match=r"gateway\.processes = 2: must be 1"):
        roma.aiohttp_app(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        roma.aiohttp_app(tmp_path / "absent.yaml")


def test_the_package_has_no_other_attribute():
    with pytest.raises(AttributeError, match="no attribute 'aiohttp'"):
        roma.aiohttp  # noqa: B018 - the look-up is what raises

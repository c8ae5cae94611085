"""The gateway's promises on real sockets: bytes untouched, TF Serving's errors, overload refused."""

import asyncio
import gzip
import json
import ssl

import pytest
import trustme
from aiohttp import web

from dispatcher.live import app
from roma.domain.events import Reason


def error(body):
    return json.loads(body)["error"]


async def test_a_body_passes_untouched_in_both_directions(harness):
    await harness.open()
    odd = b'{"instances": [1.50, NaN, 1e400],  "x": "\xc3\xa4"}\n'
    status, body, headers = await harness.predict(odd)
    assert (status, body) == (200, odd)
    assert headers["Content-Type"].startswith("application/json")
    path, seen, received = harness.backends[0].seen[-1]
    assert (path, received) == ("/v1/models/m:predict", odd)


async def test_compressed_bodies_are_not_decoded_on_the_way(harness):
    await harness.open()
    packed = gzip.compress(b'{"instances": [1]}')

    async def compressed(request, body):
        assert request.headers["Content-Encoding"] == "gzip"
        return web.Response(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})

    harness.backends[0].behave = compressed
    harness.session._auto_decompress = False
    status, body, headers = await harness.predict(packed, headers={"Content-Encoding": "gzip"})
    assert status == 200
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == b'{"instances": [1]}'  # the backend saw it decoded once


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/m:predict",
        "/v1/models/m:classify",
        "/v1/models/m:regress",
        "/v1/models/m/versions/3:predict",
        "/v1/models/m/labels/stable:predict",
    ],
)
async def test_every_inference_path_is_passed_on(harness, path):
    await harness.open()
    status, _, _ = await harness.predict(path=path)
    assert status == 200
    assert harness.backends[0].seen[-1][0] == path


async def test_status_and_metadata_come_from_the_executable(harness):
    await harness.open()
    status, body = await harness.get("/v1/models/m")
    assert json.loads(body)["model_version_status"][0]["state"] == "AVAILABLE"
    status, body = await harness.get("/v1/models/m/metadata")
    assert (status, json.loads(body)) == (200, {"model_spec": {"name": "m"}})


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
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
        ("GET", "/v1/models/m:predict", 400, "Malformed request: GET /v1/models/m:predict"),
        ("POST", "/v1/models/m", 400, "Malformed request: POST /v1/models/m"),
        ("POST", "/v1/models/m:magic", 400, "Malformed request: POST /v1/models/m:magic"),
        (
            "POST",
            "/v1/models/m/versions/x:predict",
            400,
            "Malformed request: POST /v1/models/m/versions/x:predict",
        ),
        ("DELETE", "/v1/models/m", 400, "Malformed request: DELETE /v1/models/m"),
        ("GET", "/v1/", 400, "Malformed request: GET /v1/"),
        ("GET", "/favicon.ico", 404, "Not found: /favicon.ico"),
    ],
)
async def test_errors_are_tf_servings(harness, method, path, status, message):
    await harness.open()
    async with harness.session.request(method, harness.url + path, data=b"{}") as response:
        assert (response.status, error(await response.read())) == (status, message)


async def test_the_models_own_errors_pass_through(harness):
    await harness.open()

    async def refuse(request, body):
        return web.json_response({"error": "JSON Parse error"}, status=400)

    harness.backends[0].behave = refuse
    status, body, _ = await harness.predict()
    assert (status, error(body)) == (400, "JSON Parse error")
    assert (harness.queue.invalid, harness.queue.response.mean(0.0)) == (1, None)


async def test_a_failing_model_server_is_a_violation_not_a_fast_answer(harness):
    await harness.open()

    async def fail(request, body):
        return web.json_response({"error": "boom"}, status=500)

    harness.backends[0].behave = fail
    status, body, _ = await harness.predict()
    assert (status, error(body)) == (500, "boom")
    assert (harness.queue.failed, harness.queue.response.mean(0.0)) == (1, None)


async def test_no_more_than_the_limit_is_in_flight_and_the_rest_waits_its_turn(harness):
    await harness.open(cores=2)
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict(b'{"i": %d}' % i)) for i in range(6)]
    await harness.until(lambda: len(harness.queue) == 4 and backend.running == 2)
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 6
    assert backend.most_running == 2


async def test_a_full_queue_is_429_with_retry_after(harness):
    await harness.open(max_waiting=2)
    harness.backends[0].gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict()) for _ in range(3)]
    await harness.until(lambda: len(harness.queue) == 2)
    status, body, headers = await harness.predict()
    assert (status, error(body)) == (429, "2 requests of model m wait (bound 2)")
    assert int(headers["Retry-After"]) >= 1
    harness.backends[0].gate.set()
    await asyncio.gather(*calls)


async def test_a_deadline_that_passes_in_the_queue_is_504(harness):
    await harness.open(response_time=0.1, deadline=0.2)
    harness.backends[0].gate = asyncio.Event()
    running = asyncio.create_task(harness.predict())
    await harness.until(lambda: harness.backends[0].running == 1)
    status, body, headers = await harness.predict()
    assert (status, int(headers["Retry-After"]) >= 1) == (504, True)
    assert error(body).startswith("deadline passed after ")
    harness.backends[0].gate.set()
    assert (await running)[0] == 200
    assert harness.queue.rejected[Reason.DEADLINE] == 1


async def test_without_an_executable_it_is_503_with_retry_after(harness):
    await harness.open(start=False)
    status, body, headers = await harness.predict()
    assert (status, error(body)) == (503, "no executable of model m is ready")
    assert headers["Retry-After"] == "1"
    assert (await harness.get("/v1/models/m"))[0] == 503


async def raw(harness, data, *, keep=None):
    reader, writer = keep or await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(
        data or b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    )
    answer = await asyncio.wait_for(reader.read(4096), 10)
    writer.close()
    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
    ],
)
async def test_malformed_http_is_400_and_reaches_no_model(harness, data):
    await harness.open()
    assert (await raw(harness, data)).startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert harness.backends[0].seen == []
    assert (await harness.predict())[0] == 200


async def test_a_slow_request_holds_up_nobody(harness):
    await harness.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"
    )
    for _ in range(5):
        assert (await harness.predict())[0] == 200
    assert len(harness.backends[0].seen) == 5
    writer.write(b"67890")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_health_and_readiness(harness):
    await harness.open(start=False)
    assert (await harness.get("/healthz"))[0] == 200
    status, body = await harness.get("/readyz")
    assert (status, error(body)) == (503, "no executable is ready for: m")
    await harness.backends[0].start()
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.get("/readyz"))[0] == 200


async def test_a_model_that_still_loads_is_not_ready(harness):
    await harness.open(start=False)
    harness.backends[0].available = False
    await harness.backends[0].start()
    assert (await harness.predict())[0] == 503
    harness.backends[0].available = True
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.predict())[0] == 200


async def test_draining_answers_what_was_admitted_and_sends_the_rest_elsewhere(harness):
    await harness.open()
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict()) for _ in range(3)]
    await harness.until(lambda: len(harness.queue) == 2)
    begun = await asyncio.open_connection("127.0.0.1", harness.port)
    begun[1].write(b"POST /v1/models/m:predict HTTP/1.1\r\n")
    closing = asyncio.create_task(harness.close_gateway())
    await harness.until(lambda: harness.service.program.refuses)
    # A client between two requests sends the next one to the gateway that takes its place.
    assert await asyncio.wait_for(harness.idle_connection[0].read(), 10) == b""
    harness.idle_connection[1].close()
    answer = await raw(harness, b"Host: x\r\nContent-Length: 2\r\n\r\n{}", keep=begun)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Connection: close" in answer
    assert b"Retry-After" in answer
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 3
    await closing
    assert harness.core.live == 0


async def test_draining_waits_for_no_idle_client_that_does_not_read(harness, tmp_path):
    """Over TLS an end is answered by the client: one that is in a pool reads nothing."""
    certificate = trustme.CA().issue_cert("localhost")
    files = {"certificate": certificate.cert_chain_pems[0], "key": certificate.private_key_pem}
    for name, blob in files.items():
        blob.write_to_path(tmp_path / name)
    tls = ", ".join(f"{name}: {tmp_path / name}" for name in files)
    await harness.open(gateway=f"tls: {{{tls}}}", names="[]")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port, ssl=trusting)
    body = b"x" * (100 << 10)  # more than one piece of an answer, and read
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(len(body))
    writer.transport.pause_reading()
    harness.server.close_idle()
    assert (len(harness.server.connections), harness.server.answering) == (1, 0)
    writer.transport.abort()


async def test_a_request_on_an_idle_connection_is_answered_though_nothing_is_in_flight(
    harness, monkeypatch
):
    monkeypatch.setattr(app, "LINGER", 20.0)
    await harness.open(drain=20)
    closing = asyncio.create_task(harness.close_gateway())
    await harness.until(lambda: harness.service.program.is_ending)
    assert harness.service.not_ready_reason() == "draining"  # who asks goes elsewhere
    await asyncio.sleep(0.2)  # longer than an empty dispatcher takes to drain
    answer = await raw(harness, b"", keep=harness.idle_connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in answer
    await closing


async def test_draining_waits_for_a_client_that_is_still_reading_its_answer(harness):
    size = 24 << 20  # more than the kernel keeps for a connection
    await harness.open(max_body=size, drain=60)
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port, limit=1024)
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    writer.write(head.encode() + bytes(size))
    await harness.until(lambda: harness.server.answering and not harness.core.live)
    closing = asyncio.create_task(harness.close_gateway())
    await harness.until(lambda: harness.service.program.refuses)
    await asyncio.sleep(1)  # twice as long as connections have that nobody waits for
    assert not closing.done()
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert await reader.readexactly(size) == bytes(size)
    writer.close()
    await closing
    harness.idle_connection[1].close()


async def test_draining_waits_for_a_client_that_is_still_sending_its_request(harness):
    await harness.open(drain=60)
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    writer.write(head + b"Expect: 100-continue\r\n\r\n{")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    closing = asyncio.create_task(harness.close_gateway())
    await harness.until(lambda: harness.service.program.refuses)
    await asyncio.sleep(1)  # twice as long as connections have that nobody waits for
    writer.write(b"}")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"{}")
    writer.close()
    await closing
    harness.idle_connection[1].close()


@pytest.mark.parametrize("header", ["a/\u20ac", "\udcff", "x" * 4000])
async def test_an_odd_header_strands_no_executor(harness, header):
    await harness.open()
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Type: {header}\r\n"
    data = head.encode("utf-8", "surrogateescape") + b"Content-Length: 2\r\n\r\n{}"
    await raw(harness, data)
    assert (await harness.predict())[0] == 200


async def test_a_client_that_expects_100_continue_gets_it(harness):
    await harness.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_an_unread_answer_does_not_pile_up_in_memory(harness):
    """A client that pipelines and never reads holds one connection, not the gateway's memory."""
    await harness.open(max_body=1 << 20)
    request = (
        b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n"
        + b"1" * 50000
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port, limit=1024)
    reader._transport.pause_reading()
    for _ in range(400):
        writer.write(request)
    await harness.until(lambda: harness.queue.arrivals > 10)
    await asyncio.sleep(0.3)
    buffered = [c.output.unsent for c in harness.connections]
    assert max(buffered) < 1 << 20
    writer.transport.abort()
    assert (await harness.predict())[0] == 200

"""The gateway's promises on real sockets: bytes untouched, TF Serving's errors, overload refused."""

import asyncio
import gzip
import json
import ssl

import pytest
from aiohttp import web

from dispatcher.live import app
from roma.domain.events import Reason


def error(body):
    return json.loads(body)["error"]


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


async def test_no_more_than_the_limit_is_in_flight_and_the_rest_waits_its_turn(harness):
    await harness.open(cores=2)
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    calls = [asyncio.create_task(harness.predict(b'{"i": %d}' % i)) for i in range(6)]
    await harness.until(lambda: len(harness.queue) == 4 and backend.running == 2)
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 6
    assert backend.most_running == 2


async def test_a_deadline_that_passes_in_the_queue_is_504(harness):
    await harness.open(response_time=0.1, deadline=0.2)
    running = await harness.held()
    status, body, headers = await harness.predict()
    assert (status, int(headers["Retry-After"]) >= 1) == (504, True)
    assert error(body).startswith("deadline passed after ")
    harness.backends[0].gate.set()
    assert (await running)[0] == 200
    assert harness.queue.rejected[Reason.DEADLINE] == 1


async def raw(harness, data, *, keep=None):
    reader, writer = keep or await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(
        data or b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    )
    answer = await asyncio.wait_for(reader.read(4096), 10)
    writer.close()
    return answer


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


async def test_draining_waits_for_no_idle_client_that_does_not_read(harness, authority):
    """Over TLS an end is answered by the client: one that is in a pool reads nothing."""
    await harness.open(tls=authority.issue("server", "127.0.0.1"))
    trusting = ssl.create_default_context(cafile=authority.file)
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

"""The HTTP server on raw sockets: what RFC 9112 asks, what it forbids, and every bound."""

import asyncio
import gc
import json
import tracemalloc

import pytest
from aiohttp import web

from dispatcher.live.app import within
from dispatcher.live.http.connections import TOLD
from roma.config.gateway import LimitsConfig
from roma.domain.model import Priority
from tests.support.handler import Passing

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n"


def post(body, *lines):
    more = b"".join(line + b"\r\n" for line in lines)
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Client:
    """A connection, byte by byte."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def answer(self):
        """Return status, headers and body of the next answer."""
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def ended(self):
        """Return whether the server closes and sends nothing more."""
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@pytest.fixture
async def connect(harness):
    clients = []

    async def one():
        client = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
        clients.append(client)
        return client

    yield one
    for client in clients:
        client.writer.transport.abort()


async def test_pipelined_requests_are_answered_in_their_order_one_at_a_time(harness, connect):
    await harness.open(cores=4)
    client = await connect()
    client.send(b"".join(post(b"%d" % i) for i in range(20)))
    assert [(await client.answer())[2] for _ in range(20)] == [b"%d" % i for i in range(20)]
    assert harness.backends[0].most_running == 1


async def test_a_head_that_comes_while_another_is_answered_is_screened_all_the_same(
    harness, connect
):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    second, missing = post(b"[2]"), post(b"[3]").replace(b"/m:", b"/unknown:")
    client.send(post(b"[1]") + second[:-3])
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert (await client.answer())[2] == b"[1]"
    harness.backends[0].gate.clear()
    client.send(second[-3:] + missing[:-3])
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert (await client.answer())[2] == b"[2]"
    client.send(missing[-3:])
    assert (await client.answer())[0] == 404


async def test_requests_come_whole_or_in_any_pieces(harness, connect):
    await harness.open()
    client = await connect()
    data = post(b"[1]", b"X-Request-Id: a") + post(b"[2]")
    for size in (1, 2, 7, 50):
        for start in range(0, len(data), size):
            client.send(data[start : start + size])
            await asyncio.sleep(0)
        answers = [await client.answer() for _ in range(2)]
        assert [a[2] for a in answers] == [b"[1]", b"[2]"]
        assert answers[0][1]["x-request-id"] == "a"


async def test_a_chunked_body_arrives_whole_and_its_trailers_are_dropped(harness, connect):
    await harness.open()
    client = await connect()
    client.send(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        b"3;why=not\r\n[1,\r\n2\r\n2]\r\n0\r\nX-Request-Id: trailer\r\n\r\n" + post(b"[3]")
    )
    status, headers, body = await client.answer()
    assert (status, body) == (200, b"[1,2]")
    assert "x-request-id" not in headers
    assert (await client.answer())[2] == b"[3]"
    assert "Transfer-Encoding" not in harness.backends[0].seen[0][1]


async def test_a_body_of_tiny_chunks_takes_no_more_memory_than_is_counted(harness, connect):
    await harness.open()
    client = await connect()
    client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        client.send(b"2\r\n11\r\n" * 100_000)
        await harness.until(lambda: harness.server.buffered == 200_000)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 2 * harness.server.buffered
    client.send(b"0\r\n\r\n")
    assert (await client.answer())[2] == b"1" * 200_000


async def test_an_answered_request_leaves_nothing_behind(harness, connect):
    await harness.open()
    client = await connect()
    client.send(HEAD + b"Content-Length: 4\r\n\r\n1")
    client.send(b"234")
    assert (await client.answer())[2] == b"1234"
    (connection,) = harness.connections
    assert len(connection._body) == 0


async def test_long_targets_are_not_remembered(harness, connect):
    await harness.open()
    client = await connect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for i in range(300):
            client.send(b"GET /%d%s HTTP/1.1\r\nHost: x\r\n\r\n" % (i, b"x" * 20_000))
            assert (await client.answer())[0] == 404
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 1_000_000


async def test_http_1_0_closes_unless_it_is_asked_not_to(harness, connect):
    await harness.open()
    client = await connect()
    old = b"POST /v1/models/m:predict HTTP/1.0\r\nContent-Length: 2\r\n"
    client.send(old + b"Connection: keep-alive\r\n\r\n{}")
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "keep-alive")
    client.send(old + b"\r\n{}")
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.ended()


async def test_connection_close_is_honoured(harness, connect):
    await harness.open()
    client = await connect()
    client.send(post(b"{}", b"Connection: close") + post(b"never"))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.ended()
    assert len(harness.backends[0].seen) == 1


async def test_head_has_no_body(harness, connect):
    await harness.open()
    client = await connect()
    client.send(
        b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    data = await client.reader.readuntil(b"\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 200")
    assert (await client.answer())[2] == b"ok"


async def test_the_absolute_form_of_a_target_is_understood(harness, connect):
    await harness.open()
    client = await connect()
    client.send(post(b"{}").replace(b"/v1", b"http://any.where:1/v1", 1))
    assert (await client.answer())[0] == 200
    assert harness.backends[0].seen[0][0] == "/v1/models/m:predict"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Host: y\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2, 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: +2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length : 2\r\n\r\n{}", 400),
        (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n", 400),
        (HEAD + b"Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Nul: a\x00b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (HEAD.replace(b" HTTP/1.1", b"") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b" HTTP/1.1", b"") + b"Connection: keep-alive\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"2.0") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"1.1", b"0.9") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"1.2") + b"Content-Length: 2\r\n\r\n{}", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}", 501),
        (HEAD + b"Expect: a miracle\r\nContent-Length: 2\r\n\r\n{}", 417),
        (b"GET /v1/models/m RTSP/1.0\r\nHost: x\r\n\r\n", 400),
        (HEAD.replace(b"HTTP", b"RTSP") + b"Content-Length: 2\r\n\r\n{}", 400),
        (b"\r\n" + HEAD.replace(b"T /", b"T  /") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b" HTTP", b"  HTTP") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"Host: x", b"Host: x y") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"Host: x", b"Host: x\ty") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"Host: x", b"Host: x, y") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"Host: x", b"Host: http://x/") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
    ],
)
async def test_what_two_servers_could_read_in_two_ways_ends_the_connection(
    harness, connect, request_, status
):
    await harness.open()
    client = await connect()
    client.send(request_ + post(b"smuggled"))
    answer, headers, body = await client.answer()
    assert (answer, headers["connection"]) == (status, "close")
    assert json.loads(body)["error"]
    assert await client.ended()
    assert harness.backends[0].seen == []
    assert harness.server.buffered == 0


CHUNKS = b"3;why=not\r\n[1,\r\n2\r\n2]\r\n0\r\n%s\r\n"


@pytest.mark.parametrize(
    "before",
    [
        post(b"[1]"),
        HEAD + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS % b"",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS % b"X: trailer\r\n",
        b"\r\n" + post(b"GET  / RTSP/1.0\r\n\r\n") + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("pieces", [1, 7, 10_000])
async def test_a_request_line_is_looked_at_wherever_it_begins(harness, connect, before, pieces):
    await harness.open()
    client = await connect()
    bad = HEAD.replace(b" HTTP", b"  HTTP") + b"Content-Length: 2\r\n\r\n{}"
    data = 2 * before + bad + post(b"smuggled")
    for start in range(0, len(data), pieces):
        client.send(data[start : start + pieces])
        await asyncio.sleep(0)
    assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 400]
    assert await client.ended()
    assert len(harness.backends[0].seen) == 2


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
async def test_a_chunk_too_large_is_refused_before_it_comes(harness, connect, pieces):
    await harness.open(max_body=2000)
    client = await connect()
    chunks = b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    data += HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    data += b"5\r\n12345\r\n" + b"7cc;x=y\r\n"
    for start in range(0, len(data), pieces):
        client.send(data[start : start + pieces])
        await asyncio.sleep(0)
    assert (await client.answer())[2] == b"x" * 2000
    status, _, body = await client.answer()
    assert (status, json.loads(body)["error"]) == (413, "request body is larger than 2000 bytes")
    assert await client.ended()


async def test_http_1_0_hears_no_100_continue(harness, connect):
    await harness.open()
    client = await connect()
    old = b"POST /v1/models/m:predict HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n"
    client.send(old + b"\r\n")
    client.send(b"{}")
    assert (await client.answer())[::2] == (200, b"{}")


@pytest.mark.parametrize("status", [204, 304])
async def test_what_has_no_body_says_nothing_of_its_length(harness, connect, status):
    await harness.open()

    async def nothing(request, body):
        return web.Response(status=status)

    harness.backends[0].behave = nothing
    client = await connect()
    for _ in range(3):
        client.send(post(b"{}"))
        found, headers, _ = await client.answer()
        assert (found, "content-length" in headers) == (status, False)


async def test_a_bad_request_behind_good_ones_is_answered_after_them(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    client.send(post(b"1") + post(b"2") + b"GARBAGE\r\n\r\n")
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 400]
    assert await client.ended()


async def test_a_thousand_cheap_requests_behind_a_slow_one_are_answered_in_a_loop(harness, connect):
    await harness.open()
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    client = await connect()
    cheap = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    client.send(post(b"1") + cheap * 1000 + post(b"2"))
    await harness.until(lambda: backend.running == 1)
    backend.gate.set()
    assert {(await client.answer())[0] for _ in range(1002)} == {200}
    assert next(iter(harness.core.executors)).losses == 0


async def test_a_bad_request_behind_one_that_is_refused_at_once_is_answered_once(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    bad = post(b"2", b"X-Request-Timeout-Ms: 0")
    client.send(post(b"1") + bad + b"GARBAGE\r\n\r\n")
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert [(await client.answer())[0] for _ in range(3)] == [200, 400, 400]
    assert await client.ended()
    assert harness.queue.failed == 0


async def test_a_bug_while_an_answer_goes_out_is_not_the_executables_fault(
    harness, connect, caplog
):
    await harness.open()
    handler, client = harness.server.handler, await connect()

    class Broken:
        priority = Priority.INTERACTIVE
        holders = 1

        def hold(self):
            self.holders += 1

        def release(self):
            self.holders -= 1
            if not self.holders:  # by the request, while its answer goes out
                raise RuntimeError("bug")

    class Granting(Passing):
        def handle(self, request, connection):
            harness.server.handler, request.grant = handler, Broken()
            return handler.handle(request, connection)

    harness.server.handler = Granting(handler)
    client.send(post(b"1"))
    assert await client.ended()
    assert "RuntimeError: bug" in caplog.text
    assert (await harness.predict())[0] == 200
    executor = next(iter(harness.core.executors))
    assert (executor.losses, executor.suspected, harness.server.buffered) == (0, False, 0)


async def test_heads_are_bounded_whatever_they_are_made_of(harness, connect):
    await harness.open(limits="{head_bytes: 2000}")
    for head in (
        HEAD + b"X: " + b"x" * 3000 + b"\r\n\r\n",
        HEAD + b"X: " + b"x" * 200_000,
        HEAD + b"x" * 200_000,
        b"POST /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"".join(b"X%d: y\r\n" % i for i in range(500)) + b"\r\n",
    ):
        client = await connect()
        client.send(head)
        assert (await client.answer())[0] in (431, 400)  # llhttp knows a bound of its own
        assert await client.ended()
    client = await connect()
    client.send(post(b"{}", b"X: " + b"x" * 1500) * 3)  # the bound is each request's own
    assert [(await client.answer())[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (413, b"Content-Length: 3000\r\n\r\n"),
        (417, b"Content-Length: 2\r\nExpect: more\r\n\r\n"),
        (501, b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        (400, b"Host: y\r\n\r\n"),
        (400, b"Content-Length: -1\r\n\r\n"),
        (431, b"X: " + b"x" * 3000 + b"\r\n\r\n"),
        (408, b""),
    ],
)
async def test_a_refusal_names_the_request_that_it_refuses(harness, connect, status, lines):
    await harness.open(max_body=2000, limits="{head_bytes: 2000, head_timeout: 0.1}")
    client = await connect()
    client.send(HEAD + b"X-Request-Id: r-7\r\nX: y\r\n" + lines)
    refused, headers, _ = await client.answer()
    assert (refused, headers["x-request-id"]) == (status, "r-7")


async def test_an_empty_content_type_is_passed_on_as_it_is(harness, connect):
    await harness.open()
    client = await connect()
    client.send(post(b"{}", b"Content-Type:"))
    assert (await client.answer())[0] == 200
    ((_, headers, _),) = harness.backends[0].seen
    assert headers["Content-Type"] == ""


async def test_a_body_too_large_is_refused_before_it_comes(harness, connect):
    await harness.open(max_body=2000)
    client = await connect()
    client.send(HEAD + b"Content-Length: 3000\r\nExpect: 100-continue\r\n\r\n")
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (413, "close")


async def test_all_bodies_together_are_bounded(harness, connect):
    await harness.open(max_body=1 << 21, limits="{buffered_bytes: 1048576}")
    holders = [await connect() for _ in range(2)]
    for holder in holders:
        holder.send(HEAD + b"Content-Length: 600000\r\n\r\n" + b"x" * 400_000)
    await harness.until(lambda: harness.server.buffered == 800_000)
    late = await connect()
    late.send(HEAD + b"Content-Length: 600000\r\n\r\n" + b"x" * 400_000)
    assert (await late.answer())[0] == 503
    assert harness.server.buffered == 800_000
    for holder in holders[:1]:
        holder.send(b"x" * 200_000)
        assert (await holder.answer())[0] == 200
    holders[1].writer.transport.abort()
    await harness.until(lambda: harness.server.buffered == 0)


async def test_a_client_that_is_slow_is_told_so_and_closed(harness, connect):
    await harness.open(limits="{head_timeout: 0.1, body_timeout: 0.1, idle_timeout: 0.1}")
    silent, head, body, idle = [await connect() for _ in range(4)]
    head.send(HEAD)
    body.send(HEAD + b"Content-Length: 5\r\n\r\n1")
    idle.send(post(b"{}"))
    assert (await idle.answer())[0] == 200
    assert (await head.answer())[0] == 408
    assert (await body.answer())[0] == 408
    assert all([await c.ended() for c in (silent, head, body, idle)])
    await harness.until(lambda: not harness.server.connections)


async def test_a_slow_model_server_is_not_the_clients_fault(harness, connect):
    await harness.open(limits="{head_timeout: 0.1, body_timeout: 0.1, idle_timeout: 0.1}")
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    client.send(post(b"{}") + HEAD[:10])  # and the next one has begun
    await harness.until(lambda: harness.backends[0].running == 1)
    await asyncio.sleep(0.4)
    harness.backends[0].gate.set()
    assert (await client.answer())[0] == 200


async def test_a_client_that_never_reads_is_closed(harness, connect):
    await harness.open(max_body=1 << 24, limits="{write_timeout: 0.2}")
    client = await connect()
    client.writer.transport.pause_reading()
    client.send(post(b"x" * (1 << 23)))
    await harness.until(lambda: harness.backends[0].seen)
    await harness.until(lambda: not harness.server.connections)


@pytest.mark.parametrize("line", [b"Connection: keep-alive", b"Connection: close"])
async def test_a_client_that_reads_slowly_gets_all_of_its_answer(harness, connect, line):
    await harness.open(max_body=1 << 25, limits="{write_timeout: 1}")
    client, size = await connect(), 1 << 24
    client.writer.transport.pause_reading()
    client.send(post(b"x" * size, line))
    await harness.until(lambda: any(c.output.unsent for c in harness.server.connections))
    client.writer.transport.resume_reading()
    await client.reader.readuntil(b"\r\n\r\n")
    for _ in range(32):
        await client.reader.readexactly(size // 32)
        await asyncio.sleep(0.08)


async def test_connections_are_bounded_in_all_and_by_address(harness, connect):
    await harness.open(limits="{connections: 3, connections_per_address: 2}")
    first, second = await connect(), await connect()
    for client in (first, second):
        client.send(post(b"{}"))
        assert (await client.answer())[0] == 200
    third = await connect()
    status, _, body = await third.answer()
    assert (status, json.loads(body)["error"].split()[0]) == (503, "2")
    assert await third.ended()
    first.writer.close()
    await harness.until(lambda: len(harness.server.connections) == 1)
    fourth = await connect()
    fourth.send(post(b"{}"))
    assert (await fourth.answer())[0] == 200


async def test_connections_that_end_leave_nothing_to_the_garbage_collector(harness, connect):
    await harness.open()

    def alive():
        return sum(type(found).__name__ == "Connection" for found in gc.get_objects())

    gc.collect()
    before = alive()
    gc.disable()
    try:
        for sent in (post(b"{}"), HEAD, b"nonsense\r\n\r\n", post(b"[1]")[:-1], b""):
            for _ in range(5):
                client = await connect()
                client.send(sent)
                if sent == post(b"{}"):
                    assert (await client.answer())[0] == 200
                client.writer.transport.abort()
        await harness.until(lambda: not harness.server.connections)
        await harness.until(lambda: alive() <= before)
    finally:
        gc.enable()


async def test_a_flood_of_connections_holds_few_beyond_the_limit(harness, connect):
    await harness.open(limits="{connections: 1}")
    first = await connect()
    first.send(post(b"{}"))
    assert (await first.answer())[0] == 200
    flood = [await connect() for _ in range(3 * TOLD)]
    await harness.until(lambda: harness.server.turned_away == len(flood))
    await harness.until(lambda: len(harness.server.connections) <= 1 + TOLD)
    first.send(post(b"{}"))
    assert (await first.answer())[0] == 200


def test_no_more_connections_than_there_are_descriptors_for(caplog):
    limits = LimitsConfig(connections=1000)
    assert within(limits, 1256) is limits
    assert caplog.text == ""
    assert within(limits, 1255).connections == 999
    assert within(limits, 100).connections == 50
    assert within(limits, 1255, ports=2).connections == 499
    assert "gateway.limits.connections = 1000: taken as 50" in caplog.text


async def test_the_slot_of_a_client_that_goes_is_free_when_the_model_server_has_ended(
    harness, connect
):
    await harness.open()
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    client = await connect()
    client.send(post(b"{}"))
    await harness.until(lambda: backend.running == 1)
    client.writer.transport.abort()
    await harness.until(lambda: harness.queue.cancelled == 1)
    assert harness.server.buffered == 0
    next_one = asyncio.create_task(harness.predict(b"next"))
    await harness.until(lambda: len(harness.queue) == 1)
    await asyncio.sleep(0.05)
    assert (backend.running, len(backend.seen)) == (1, 1)
    backend.gate.set()
    assert (await next_one)[:2] == (200, b"next")
    assert backend.most_running == 1
    # The answer that nobody waited for left its connection usable; the other one is for looks.
    assert len(backend.open_connections) <= 2


async def test_who_sends_and_hangs_up_keeps_to_the_model_servers_slots(harness, connect):
    """A hundred clients that close after a moment, at a model server of two slots."""
    await harness.open(cores=2, max_waiting=1000)
    backend = harness.backends[0]

    async def slow(request, body):
        await asyncio.sleep(0.02)
        return web.Response(body=b"{}")

    backend.behave = slow
    for _ in range(100):
        client = await connect()
        client.send(post(b"{}"))
        await asyncio.sleep(0.001)
        client.writer.transport.abort()
    await harness.until(lambda: not harness.gateway._driver._attempts and not len(harness.queue))
    assert len(backend.seen) > 2
    assert backend.most_running <= 2
    assert (await harness.predict())[0] == 200


async def test_an_executable_that_is_silent_is_probed_with_one_request_at_a_time(harness):
    await harness.open(cores=3, timeout=0.3)
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    answers = await asyncio.gather(*(harness.predict() for _ in range(3)))
    assert [answer[0] for answer in answers] == [502] * 3
    await harness.until(lambda: not harness.core.executors["m.0@local"].suspected)
    harness.service.driver._timeout = 30.0  # what follows is slow, not silent
    backend.gate.set()
    await harness.until(lambda: backend.running == 0)
    backend.most_running, held = 0, asyncio.Event()

    async def one_by_one(request, body):
        await held.wait()
        return web.Response(body=b"{}")

    backend.behave = one_by_one
    calls = [asyncio.create_task(harness.predict()) for _ in range(3)]
    await harness.until(lambda: len(harness.queue) == 2 and backend.running == 1)
    assert backend.most_running == 1
    held.set()
    assert [(await call)[0] for call in calls] == [200] * 3
    assert not harness.core.executors["m.0@local"].probing


async def test_a_bug_in_the_handler_costs_one_answer(harness, connect, caplog):
    await harness.open()
    handler = harness.server.handler

    class Broken(Passing):
        def handle(self, request, connection):
            harness.server.handler = handler
            raise RuntimeError("bug")

    harness.server.handler = Broken(handler)
    client = await connect()
    client.send(post(b"{}"))
    assert (await client.answer())[0] == 500
    assert "RuntimeError: bug" in caplog.text
    assert (await harness.predict())[0] == 200


@pytest.mark.parametrize("timeout", ["0", "-1", "1.5", "x", "", "9999999999", "\u0663"])
async def test_a_deadline_that_makes_no_sense_is_named(harness, connect, timeout):
    await harness.open()
    client = await connect()
    client.send(post(b"{}", b"X-Request-Timeout-Ms: " + timeout.encode()))
    status, _, body = await client.answer()
    assert status == 400
    assert json.loads(body)["error"].startswith("X-Request-Timeout-Ms: ")
    assert harness.backends[0].seen == []


async def test_a_clients_own_deadline_is_kept_while_its_request_runs(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    client.send(post(b"{}", b"X-Request-Timeout-Ms: 300"))
    status, _, body = await client.answer()
    assert status == 504
    assert json.loads(body)["error"].startswith("deadline passed after 0.3")
    ((_, headers, _),) = harness.backends[0].seen
    assert 1 <= int(headers["X-Request-Timeout-Ms"]) <= 300


async def test_trailers_and_heads_in_pieces_are_bounded_by_what_they_are(harness, connect):
    await harness.open(limits="{head_bytes: 20000}")
    client = await connect()
    client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ")
    for _ in range(60):
        client.send(b"v" * 10_000)
        await asyncio.sleep(0)
        if client.reader.at_eof():
            break
    assert (await client.answer())[0] == 431
    head = HEAD + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(150))
    client = await connect()
    for start in range(0, len(head), 1400):  # as a network brings it
        client.send(head[start : start + 1400])
        await asyncio.sleep(0.002)
    client.send(b"Content-Length: 2\r\n\r\n{}")
    assert (await client.answer())[0] == 200


async def test_limits_that_are_lowered_hold_for_connections_that_are_open(harness, connect):
    await harness.open()
    client = await connect()
    client.send(post(b"{}"))
    assert (await client.answer())[0] == 200
    limits = harness.server.limits.model_copy(update={"head_bytes": 1024})
    harness.server.bound(limits, harness.server.bounds.max_body_bytes)
    client.send(post(b"{}", b"X: " + b"x" * 2000))
    assert (await client.answer())[0] == 431


async def test_a_request_behind_another_may_expect_100_continue(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    client.send(post(b"1") + HEAD + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n")
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert (await client.answer())[2] == b"1"
    assert (await client.answer())[0] == 100
    client.send(b"2")
    assert (await client.answer())[2] == b"2"

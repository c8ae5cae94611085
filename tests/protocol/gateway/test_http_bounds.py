"""The HTTP server on raw sockets: every bound, on heads, bodies, time and connections."""

import asyncio
import gc
import json
import ssl
import tracemalloc

import pytest

from dispatcher.live.app import within
from dispatcher.live.http.connections import TOLD
from roma.config.gateway import LimitsConfig
from tests.support.raw_http import HEAD, Client, post


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
    await harness.open(limits="{head_timeout: 1000, body_timeout: 2000, idle_timeout: 3000}")
    silent, head, body, idle = [await connect() for _ in range(4)]
    head.send(HEAD)
    body.send(HEAD + b"Content-Length: 5\r\n\r\n1")
    idle.send(post(b"{}"))
    assert (await idle.answer())[0] == 200

    def left():
        return sorted(round((c.due - harness.server.now) / 1000) for c in harness.connections)

    await harness.until(lambda: left() == [1, 1, 2, 3])
    for connection in harness.connections:
        connection.due = 0.0  # the time is over
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


async def test_a_head_that_begins_behind_another_request_has_no_more_time(harness, connect):
    await harness.open(limits="{head_timeout: 0.5}")
    harness.backends[0].gate = asyncio.Event()
    client = await connect()
    client.send(post(b"{}") + HEAD)  # in one read
    await harness.until(lambda: harness.backends[0].running == 1)
    harness.backends[0].gate.set()
    assert (await client.answer())[0] == 200
    status, _, body = await client.answer()  # within 10 s: a body has 30
    assert (status, b"request head took longer than 0.5 s" in body) == (408, True)


async def test_a_client_that_never_reads_is_closed(harness, connect):
    await harness.open(max_body=1 << 24, limits="{write_timeout: 0.2}")
    client = await connect()
    client.writer.transport.pause_reading()
    client.send(post(b"x" * (1 << 23)))
    await harness.until(lambda: harness.backends[0].seen)
    await harness.until(lambda: not harness.server.connections)


@pytest.mark.parametrize("line", [b"Connection: keep-alive", b"Connection: close"])
async def test_a_client_that_reads_slowly_gets_all_of_its_answer(harness, connect, line):
    await harness.open(max_body=1 << 25)
    client, size = await connect(), 1 << 24
    client.writer.transport.pause_reading()
    client.send(post(b"x" * size, line))
    await harness.until(lambda: any(c.output.unsent for c in harness.server.connections))
    (connection,) = harness.server.connections
    client.writer.transport.resume_reading()
    await client.reader.readuntil(b"\r\n\r\n")
    looks = 0
    for _ in range(32):
        await client.reader.readexactly(size // 32)
        await asyncio.sleep(0.005)
        if 0 < connection.output.unsent < connection.output._left:
            # Its time had passed, but it had read since the gateway looked last.
            looks, connection.due = looks + 1, 0.0
            await harness.until(lambda: connection.due or not connection.output.unsent)
    assert looks > 0


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


async def test_a_flood_from_one_address_leaves_room_for_the_others(harness, connect):
    most = 3 * TOLD
    await harness.open(limits=f"{{connections: {most}, connections_per_address: 1}}")
    flood = [await connect("127.0.0.2") for _ in range(most)]
    await harness.until(lambda: harness.server.turned_away == len(flood) - 1)
    other = await connect()
    other.send(post(b"{}"))
    assert (await other.answer())[0] == 200
    assert len(harness.server.connections) <= 1 + TOLD + 1


def test_no_more_connections_than_there_are_descriptors_for(caplog):
    limits = LimitsConfig(connections=1000)
    assert within(limits, 1256) is limits
    assert caplog.text == ""
    assert within(limits, 1255).connections == 999
    assert within(limits, 100).connections == 50
    assert within(limits, 1255, ports=2).connections == 499
    assert "gateway.limits.connections = 1000: taken as 50" in caplog.text


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
    harness.bound(head_bytes=1024)
    client.send(post(b"{}", b"X: " + b"x" * 2000))
    assert (await client.answer())[0] == 431


@pytest.mark.parametrize("by_tls", [False, True])
async def test_a_client_that_was_refused_may_send_the_rest_of_its_body(harness, authority, by_tls):
    """Many read no answer before; one that is cut off in the middle sees none at all."""
    tls = authority.issue("server", "127.0.0.1") if by_tls else None
    await harness.open(limits="{body_timeout: 60}", tls=tls)
    trusting = ssl.create_default_context(cafile=authority.file) if by_tls else None
    client = Client(*await asyncio.open_connection("127.0.0.1", harness.port, ssl=trusting))
    client.send(b"POST /v1/models/other:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    assert (await client.answer())[0] == 404
    (connection,) = harness.connections
    for _ in range(3):
        client.send(b"x")
        await harness.until(lambda: connection._progressed)
        connection.on_due()  # LINGER has passed since it was refused, or last had sent something
        assert not connection.output.is_closing
    connection.on_due()
    assert await client.ended()
    client.writer.close()

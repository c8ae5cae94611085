"""Answers that clients do not read: they count, make room for others, and their memory comes back."""

import asyncio
import contextlib
import io
import math
import resource
import socket
from pathlib import Path

import pytest
from aiohttp import web

from dispatcher.live.memory import KEPT, FreeMemory
from roma.security import api_keys
from tests.protocol.gateway.test_grpc import PREDICT, asking
from tests.protocol.gateway.test_grpc_bounds import Code
from tests.support import http2
from tests.support.keys import keys_file
from tests.support.raw_http import post

SIZE = 24 * 2**20
"""More than the kernel takes of an answer: four MiB are usual, or six."""

LIMITS = f"{{buffered_bytes: {SIZE + 2**20}}}"
HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def answer(request, body):
    return web.Response(body=b"x" if body == b"small" else bytes(SIZE))


@pytest.fixture
async def large(harness):
    """A gateway whose model answers more than one of to be held, but the body `small`."""
    await harness.open(cores=8, max_body=2**26, limits=LIMITS)
    harness.backends[0].behave = answer
    return harness


def drain(sock):
    """Read an answer; return whether all of it came."""
    left = SIZE
    with contextlib.suppress(ConnectionResetError):
        while left > 0 and (read := len(sock.recv(2**20))):
            left -= read
    return left <= 0


def end_of_answers(sock):
    """Read the large answer and the small or refused one behind it; return the last bytes."""
    sock.settimeout(20)
    end, read = b"", 0
    while read < SIZE or end[-1:] not in b"x}":
        found = sock.recv(2**20)
        end, read = (end + found)[-1024:], read + len(found)
    return end


@contextlib.asynccontextmanager
async def unread(harness):
    """A client that leaves its answer unread."""
    sock = socket.create_connection(("127.0.0.1", harness.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
    sock.sendall(HEAD)
    try:
        await harness.until(lambda: harness.server.unsent > SIZE // 2)
        yield sock
    finally:
        sock.close()


async def test_an_answer_that_is_not_read_counts_until_its_client_goes(large):
    async with unread(large):
        assert large.server.buffered == large.server.unsent
        assert len(large.server.unread) == 1
    await large.until(lambda: not large.server.connections)
    assert (large.server.buffered, large.server.unsent, large.server.unread) == (0, 0, {})


async def test_an_answer_that_is_read_counts_no_longer(large):
    async with unread(large) as sock:
        assert await asyncio.to_thread(drain, sock)
        await large.until(lambda: large.server.unsent == 0)
        assert (large.server.buffered, large.server.unread) == (0, {})


async def test_what_is_one_too_many_is_refused_while_unread_answers_are_held(large, caplog):
    large.server.patience = math.inf
    async with unread(large):
        status, body, _ = await large.predict()  # its answer
        assert (status, b"limit reached" in body) == (503, True)
        status, *_ = await large.predict(io.BytesIO(bytes(SIZE)))  # its body
        assert status == 503
        assert (await large.predict(b"small"))[:2] == (200, b"x")
        assert large.server.closed_unread == 0
    assert f"gateway.limits.buffered_bytes = {SIZE + 2**20} is reached" in caplog.text


async def test_a_client_that_does_not_read_makes_room_for_others(large):
    large.server.patience = 0.0
    async with unread(large) as sock:
        async with asyncio.timeout(60):
            while (await large.predict())[0] == 503:  # until it is seen to take nothing
                await asyncio.sleep(0.1)
        assert large.server.closed_unread == 1
        await large.until(lambda: large.server.unsent == 0)
        assert not await asyncio.to_thread(drain, sock)


async def test_a_request_behind_an_unread_answer_is_admitted_once(harness, tmp_path):
    """Its head comes before that answer, and its body while it is unread."""
    token = api_keys.new_token("aaaaaaaa")
    await harness.open(gateway=f"keys: {keys_file(tmp_path, {token: {'concurrency': 1}})}")
    harness.backends[0].behave = answer
    key = b"X-API-Key: " + token.encode()
    with socket.create_connection(("127.0.0.1", harness.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        sock.sendall(post(b"{}", key) + post(b"small", key).removesuffix(b"small"))
        await harness.until(lambda: harness.server.unsent > SIZE // 2)
        (connection,) = harness.server.connections
        sock.sendall(b"small")
        await harness.until(lambda: "idle, 0 wait" not in repr(connection))
        assert b"HTTP/1.1 200 OK" in await asyncio.to_thread(end_of_answers, sock)
    assert (await harness.predict(b"small", headers={"X-API-Key": token}))[0] == 200


async def test_one_answer_is_sent_however_large(large):
    status, body, _ = await large.predict(b"any")
    assert (status, len(body)) == (200, SIZE)
    large.bound(buffered_bytes=2**20)
    status, body, _ = await large.predict(b"any")
    assert (status, len(body)) == (200, SIZE)


async def test_answers_of_grpc_count_until_they_are_sent(harness):
    await harness.open(speaks_grpc=True, limits=LIMITS)

    async def answer(request, context):
        return bytes(SIZE)

    harness.grpc_backends[0].behave = answer
    client = await http2.connected(harness.grpc_port, "127.0.0.1")
    try:  # it gives gRPC no window for the answer
        client.begin(PREDICT)
        client.whole(asking(PREDICT))
        await harness.until(lambda: harness.server.unsent == SIZE)
        code, _, text, trailing = await harness.call(PREDICT, asking(PREDICT))
        assert (code, trailing["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
        assert "limit reached" in text
    finally:
        await client.close()
    await harness.until(lambda: harness.server.buffered == harness.server.unsent == 0)
    code, body, *_ = await harness.call(PREDICT, asking(PREDICT))
    assert (code, len(body)) == (Code.OK, SIZE)


def resident():
    """Return the bytes of memory that this process has of the system."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_free_memory_is_given_back_after_a_peak_and_not_before():
    free = FreeMemory()
    if free._trim is None or free._info is None:
        pytest.skip("not glibc 2.33")
    free.release()
    assert not free.release()
    # From the heap, not from mmap: blocks below its threshold, with something behind each.
    held = [bytearray(60_000) for _ in range(2 * KEPT // 60_000)]
    assert not free.release()
    del held[: len(held) - 1]
    before = resident()
    assert free.release()
    assert resident() < before - KEPT
    assert not free.release()

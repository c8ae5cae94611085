"""Connections to model servers that are idle: how long, and what if one is closed just then."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest

from dispatcher.live.backends.http_client import Pool
from dispatcher.live.http.messages import Message, Response, request_template
from roma.domain.errors import BackendError, BackendLost
from tests.support.waiting import until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A model server's end, step by step: nothing happens that a test does not say."""

    def __init__(self, path=None):
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.pool = Pool(*self._listener.getsockname())
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen()
            self.pool = Pool("localhost", 1, path)
        self._listener.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.results = []

    def send(self, body=b"{}"):
        message = Message(request_template("/v1/models/m:predict"), body)
        return self.pool.send(message, self.results.append, timeout=60)

    async def accept(self):
        async with asyncio.timeout(20):
            conn, _ = await self.loop.sock_accept(self._listener)
        return conn

    async def read(self, conn, body=b"{}"):
        """Return a whole request."""
        data = b""
        async with asyncio.timeout(20):
            while not data.endswith(b"\r\n\r\n" + body):
                data += await self.loop.sock_recv(conn, 65536)
        return data

    async def result(self, count=1):
        await until(lambda: len(self.results) >= count)
        return self.results[-1]

    async def used(self):
        """Return a connection that has carried one request and is idle now."""
        self.send()
        conn = await self.accept()
        await self.read(conn)
        conn.send(ANSWER)
        assert isinstance(await self.result(), Response)
        self.results.clear()
        return conn

    def nobody_connects(self):
        with contextlib.suppress(BlockingIOError):
            conn, _ = self._listener.accept()
            conn.close()
            return False
        return True

    async def close(self):
        await self.pool.close()
        self._listener.close()


@pytest.fixture(params=["port", "socket"])
async def server(request, sockets):
    server = Server(None if request.param == "port" else os.fspath(sockets / "s"))
    yield server
    await server.close()


def reset(conn):
    """Close as a program does that will have nothing to do with what is still to come."""
    if conn.family != socket.AF_UNIX:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()


@pytest.mark.parametrize("close", [socket.socket.close, reset])
@pytest.mark.parametrize("body", [b"{}", b"x" * 4_000_000])
async def test_a_request_that_meets_a_closed_connection_is_sent_on_a_new_one(server, close, body):
    close(await server.used())
    server.send(body)  # before the loop has heard of it
    conn = await server.accept()
    await server.read(conn, body)
    conn.send(ANSWER)
    assert (await server.result()).body == b"ok"
    assert server.nobody_connects()
    conn.close()


@pytest.mark.parametrize("close", [socket.socket.close, reset])
async def test_a_request_that_arrived_is_not_sent_again(server, close):
    conn = await server.used()
    server.send()
    await server.read(conn)
    close(conn)
    assert isinstance(await server.result(), BackendLost)
    assert server.nobody_connects()


async def test_a_request_whose_answer_has_begun_is_not_sent_again(server):
    conn = await server.used()
    server.send()
    await server.read(conn)
    conn.send(ANSWER[:-1])
    conn.close()
    assert isinstance(await server.result(), BackendLost)
    assert server.nobody_connects()


async def test_the_first_request_of_a_connection_is_not_sent_again(server):
    server.send()
    reset(await server.accept())
    assert isinstance(await server.result(), BackendLost)
    assert server.nobody_connects()


async def test_a_request_is_sent_a_second_time_and_not_a_third(server):
    (await server.used()).close()
    server.send()
    (await server.accept()).close()
    assert isinstance(await server.result(), BackendLost)
    assert server.nobody_connects()


async def test_a_request_that_is_given_up_is_given_up_on_its_new_connection_too(server):
    (await server.used()).close()
    attempt = server.send()
    conn = await server.accept()
    await server.read(conn)
    attempt.abort()
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await server.loop.sock_recv(conn, 1) == b""
    conn.close()
    assert server.results == []


async def test_idle_connections_are_closed_and_busy_ones_are_not(server):
    conn = await server.used()
    async with asyncio.timeout(20):
        assert await server.loop.sock_recv(conn, 1) == b""
    conn.close()
    busy = await server.used()
    server.send()
    await server.read(busy)
    idle = [c for c in server.pool._all if c in server.pool._idle]
    assert idle == []
    busy.send(ANSWER)
    assert not isinstance(await server.result(), BackendError)
    busy.close()


async def test_a_connection_whose_request_was_answered_early_is_not_used_again(server):
    big = b"[" + b"1," * 10_000_000 + b"1]"
    server.send(big)
    conn = await server.accept()
    await server.loop.sock_recv(conn, 1000)
    conn.send(ANSWER)  # it reads nothing more: most of the request is still here
    assert isinstance(await server.result(), Response)
    server.send()
    other = await server.accept()
    await server.read(other)
    other.send(ANSWER)
    assert isinstance(await server.result(2), Response)
    conn.close()
    other.close()


async def test_an_answer_in_tiny_chunks_lets_the_event_loop_turn(server):
    server.send()
    conn = await server.accept()
    await server.read(conn)
    (connection,) = server.pool._all
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    # As one read of a socket would bring it.
    connection.data_received(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
    turns = 0
    while connection._reading.rest:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    assert (await server.result()).body == b"x" * 20_000
    conn.close()


async def test_codings_in_several_lines_are_one_list(server):
    server.send()
    conn = await server.accept()
    await server.read(conn)
    lines = b"Content-Encoding: deflate\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"
    conn.send(b"HTTP/1.1 200 OK\r\n" + lines)
    assert (await server.result()).content_encoding == "deflate, gzip"
    conn.close()


async def test_the_length_of_an_interim_answer_is_not_that_of_the_answer(server):
    server.send()
    conn = await server.accept()
    await server.read(conn)
    conn.send(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n")
    conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nok")  # to the end of file
    conn.close()
    answer = await server.result()
    assert (answer.status, answer.body) == (200, b"ok")

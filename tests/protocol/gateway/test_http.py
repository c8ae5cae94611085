"""The HTTP server on raw sockets: what RFC 9112 asks, and what it forbids."""

import asyncio
import json

import pytest
from aiohttp import web

from dispatcher.live.http.pacing import MOST_WAITING
from roma.domain.model import Priority
from tests.support.handler import Passing
from tests.support.raw_http import HEAD, post


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


@pytest.mark.parametrize("name", [b"Upgrade", b"UPGRADE"])
async def test_an_offer_to_upgrade_is_ignored(harness, connect, name):
    await harness.open()
    client = await connect()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\n" + name + b": h2c"
    for _ in range(3):  # also with a head that is known
        client.send(post(b"\r\nUpgrade:", offer))
        status, _, body = await client.answer()
        assert (status, body) == (200, b"\r\nUpgrade:")


async def test_an_offer_to_upgrade_in_a_head_in_pieces_is_ignored(harness, connect):
    await harness.open()
    # A part of the head's end, and this body, must not be taken for more of the head.
    body = b"\r\nUpgrade: h2c\r\n\r\n"
    data = post(body, b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c")
    client = await connect()
    for cut in range(data.index(b"\r\nUpgrade"), len(data) - len(body) + 1):
        client.send(data[:cut])
        await harness.until(lambda: harness.connections[0]._request)
        client.send(data[cut:] + post(b"[2]"))
        status, _, echo = await client.answer()
        assert (cut, status, echo) == (cut, 200, body)
        assert (await client.answer())[2] == b"[2]"


@pytest.mark.parametrize("is_one_read", [True, False])
async def test_an_offer_to_upgrade_of_a_pipelined_request_is_ignored(harness, connect, is_one_read):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"
    body = b"\r\nUpgrade: h2c\r\n\r\n"
    chunked = HEAD + offer + b"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[2]\r\n0\r\n\r\n"
    first, others = post(b"[1]"), post(body, offer) + chunked + post(b"[3]") + post(body, offer)
    client = await connect()
    if is_one_read:
        client.send(first + others)
    else:
        client.send(first)
        await harness.until(lambda: harness.backends[0].running == 1)
        client.send(others)
    harness.backends[0].gate.set()
    answers = [await client.answer() for _ in range(5)]
    assert [(a[0], a[2]) for a in answers] == [
        (200, sent) for sent in (b"[1]", body, b"[2]", b"[3]", body)
    ]


MANY = {
    "chunks of one byte": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\n1\r\n",
        b"0\r\n\r\n",
    ),
    "requests in a row": (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", post(b"{}")),
}


@pytest.mark.parametrize("kind", MANY)
async def test_a_read_of_many_parts_lets_the_event_loop_turn(harness, connect, kind):
    await harness.open()
    first, part, last = MANY[kind]
    client, (connection,) = await connect(), harness.connections
    turns = 0

    async def turning():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as group:
        other = group.create_task(turning())
        await asyncio.sleep(0)
        # As one read of a socket would bring it; no turn is taken in between.
        connection.data_received(first + part * 20_000 + last)
        assert connection._reading.rest
        before = turns
        while connection._reading.rest:
            await asyncio.sleep(0)
        assert turns - before >= 10
        other.cancel()
    while (await client.answer())[2] in (b"ok", b"ok\n"):
        pass
    assert harness.backends[0].seen


async def test_what_waited_for_one_request_is_answered_a_part_in_each_turn(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client, (connection,) = await connect(), harness.connections
    client.send(post(b"[1]") + MANY["requests in a row"][1] * 200)
    await harness.until(lambda: len(connection._waiting) == 200)
    harness.backends[0].gate.set()
    left = set()
    while connection._waiting:
        left.add(len(connection._waiting))
        await asyncio.sleep(0)
    assert len(left) >= 4


async def test_no_more_than_so_many_requests_wait_on_a_connection(harness, connect):
    await harness.open()
    harness.backends[0].gate = asyncio.Event()
    client, (connection,) = await connect(), harness.connections
    client.send(post(b"[1]") + MANY["requests in a row"][1] * 1000)
    await harness.until(lambda: len(connection._waiting) == MOST_WAITING)
    await asyncio.sleep(0.05)
    assert len(connection._waiting) == MOST_WAITING
    harness.backends[0].gate.set()
    statuses = [(await client.answer())[0] for _ in range(MOST_WAITING + 2)]
    assert statuses == [200] * (MOST_WAITING + 1) + [503]


async def test_an_answered_request_leaves_nothing_behind(harness, connect):
    await harness.open()
    client = await connect()
    client.send(HEAD + b"Content-Length: 4\r\n\r\n1")
    client.send(b"234")
    assert (await client.answer())[2] == b"1234"
    (connection,) = harness.connections
    assert len(connection._body) == 0


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
        (HEAD + b"Bad Header\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (b"GARBAGE\r\n\r\n", 400),
        (HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (HEAD.replace(b" HTTP/1.1", b"") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b" HTTP/1.1", b"") + b"Connection: keep-alive\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"2.0") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"1.1", b"0.9") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"1.2") + b"Content-Length: 2\r\n\r\n{}", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
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
        (HEAD + b"Content-Length: " + 5000 * b"0" + b"2\r\n\r\n{}", 413),
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


async def test_hundreds_of_cheap_requests_behind_a_slow_one_are_answered(harness, connect):
    await harness.open()
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    client = await connect()
    cheap = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    client.send(post(b"1") + cheap * (MOST_WAITING - 1) + post(b"2"))
    await harness.until(lambda: backend.running == 1)
    backend.gate.set()
    assert {(await client.answer())[0] for _ in range(MOST_WAITING + 1)} == {200}
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
    await harness.open(max_body=2000, limits="{head_bytes: 2000, head_timeout: 60}")
    client = await connect()
    client.send(HEAD + b"X-Request-Id: r-7\r\nX: y\r\n" + lines)
    if status == 408:
        await harness.until(lambda: harness.connections and not harness.connections[0].is_idle)
        harness.connections[0].due = 0.0  # the time is over
    refused, headers, _ = await client.answer()
    assert (refused, headers["x-request-id"]) == (status, "r-7")


async def test_an_empty_content_type_is_passed_on_as_it_is(harness, connect):
    await harness.open()
    client = await connect()
    client.send(post(b"{}", b"Content-Type:"))
    assert (await client.answer())[0] == 200
    ((_, headers, _),) = harness.backends[0].seen
    assert headers["Content-Type"] == ""


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
    told = json.loads(body)["error"]
    assert told.startswith("deadline passed after ")
    assert float(told.split()[3]) >= 0.3
    ((_, headers, _),) = harness.backends[0].seen
    assert 1 <= int(headers["X-Request-Timeout-Ms"]) <= 300


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

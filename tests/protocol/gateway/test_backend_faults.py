"""Executables that die, refuse or answer nonsense: each request still ends exactly once."""

import asyncio
import errno
import json
import socket

import pytest
from aiohttp import web

from dispatcher.live.backends.http_client import Pool
from dispatcher.live.http.messages import Message, request_template
from roma.domain.errors import (
    BackendAway,
    BackendError,
    BackendLost,
    BackendSilent,
    BackendUnreachable,
)
from tests.protocol.gateway.conftest import answering, saying


async def test_a_dead_executable_fails_what_it_ran_and_comes_back_when_healthy(harness, behind):
    await harness.open(sockets=behind)
    backend = harness.backends[0]
    call = await harness.held()
    backend.kill_connections()
    status, body, _ = await call
    assert status == 502
    assert "m.0@local" in json.loads(body)["error"]
    await backend.stop()
    await harness.until(
        lambda: not any(harness.core.executors.of("m")), limit=2
    )  # noticed in < 2 s
    assert (await harness.predict())[0] == 503
    backend.gate = None
    await backend.start()
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.predict())[0] == 200
    assert harness.queue.failed == 1


async def test_a_request_that_never_reached_its_executable_runs_on_another(harness, behind):
    await harness.open(backends=2, sockets=behind)
    dead, alive = harness.backends
    await harness.unreachable()
    statuses = [(await harness.predict())[0] for _ in range(4)]
    assert statuses == [200] * 4
    assert dead.seen == []
    assert len(alive.seen) == 4


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), BackendUnreachable),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), BackendSilent),
        (["127.0.0.1", "127.0.0.2"], BackendUnreachable),  # asyncio tells both, without a number
        (OSError(errno.EHOSTUNREACH, "No route to host"), BackendAway),
        (OSError(errno.EMFILE, "Too many open files"), BackendError),
    ],
)
def test_a_name_that_leads_nowhere_is_one_that_was_not_reached(monkeypatch, found, expected):
    """Its request may run on another executable, unless the fault is on this side."""
    known = socket.getaddrinfo

    def looked_up(host, port, *args, **options):
        if host != "model-server":
            return known(host, port, *args, **options)
        if isinstance(found, OSError):
            raise found
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        return [(*kind, "", (address, port)) for address in found]

    async def sent():
        pool = Pool("model-server", 1)
        result = asyncio.get_running_loop().create_future()
        pool.send(Message(request_template("/p"), b"{}"), result.set_result, timeout=20)
        try:
            return await result
        finally:
            await pool.close()

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    assert type(asyncio.run(sent())) is expected


async def test_two_answers_to_one_request_cost_the_connection(harness):
    await harness.open(cores=2)
    backend = harness.backends[0]
    backend.behave = saying(2 * b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert (await harness.predict())[0] == 200
    backend.behave = None
    statuses = await asyncio.gather(*(harness.predict() for _ in range(6)))
    assert [status for status, _, _ in statuses] == [200] * 6


async def test_an_answer_that_ends_with_its_connection_is_whole(harness):
    await harness.open()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\n\r\nall of it"
    harness.backends[0].behave = saying(answer, closes=True)
    status, body, headers = await harness.predict()
    assert (status, body, headers["Content-Type"]) == (200, b"all of it", "text/x")


async def test_an_interim_answer_leaves_nothing_on_the_final_one(harness):
    await harness.open()
    harness.backends[0].behave = saying(
        b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/early\r\nContent-Encoding: gzip\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    )
    status, body, headers = await harness.predict()
    assert (status, body) == (200, b"{}")
    assert headers["Content-Type"] == "application/json"
    assert "Content-Encoding" not in headers


async def test_trailers_of_an_answer_are_dropped(harness):
    await harness.open()
    harness.backends[0].behave = saying(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nContent-Type: text/late\r\nContent-Encoding: gzip\r\n"
        b"Retry-After: 9\r\nInference-Header-Content-Length: 1\r\n"
        b"Transfer-Encoding: gzip\r\n\r\n"
    )
    status, body, headers = await harness.predict()
    assert (status, body) == (200, b"{}")
    assert headers["Content-Type"] == "application/json"
    late = {"Content-Encoding", "Retry-After", "Inference-Header-Content-Length"}
    assert late.isdisjoint(headers)


async def test_a_transfer_coding_may_be_followed_by_a_blank(harness):
    await harness.open()
    coded = b"Transfer-Encoding: Chunked \r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    harness.backends[0].behave = saying(b"HTTP/1.1 200 OK\r\n" + coded)
    assert (await harness.predict())[:2] == (200, b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 099 Low\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked;q=1\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_502_and_is_not_repeated(harness, answer):
    await harness.open()
    backend = harness.backends[0]
    backend.behave = saying(answer, closes=True)
    status, _, _ = await harness.predict()
    assert status == 502
    assert len(backend.seen) == 1


async def test_an_executable_that_never_answers_is_cut_off(harness):
    await harness.open(timeout=0.2)
    harness.backends[0].gate = asyncio.Event()
    status, body, _ = await harness.predict()
    assert status == 502
    assert "no answer within 0.2 s" in json.loads(body)["error"]
    harness.backends[0].gate = None
    async with asyncio.timeout(60):  # the next answer, too, may take longer than 0.2 s
        while (await harness.predict())[0] != 200:
            assert harness.queue.failed


async def endless_body(request, body):
    request.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    await pour(request.transport, b"1000\r\n" + b"x" * 4096 + b"\r\n")


async def endless_header(request, body):
    request.transport.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    await pour(request.transport, b"x" * 4096)


async def endless_headers(request, body):
    request.transport.write(b"HTTP/1.1 200 OK\r\n")
    await pour(request.transport, b"X-Many: x\r\n" * 400)


async def endless_hints(request, body):
    await pour(request.transport, b"HTTP/1.1 103 Early Hints\r\nX: x\r\n\r\n" * 100)


async def announced(request, body):
    request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    await pour(request.transport, b"x" * 4096)


async def pour(transport, data):
    while not transport.is_closing():
        transport.write(data)
        await asyncio.sleep(0)
    await asyncio.sleep(10)


@pytest.mark.parametrize(
    "behave", [endless_body, endless_header, endless_headers, endless_hints, announced]
)
async def test_an_endless_answer_is_given_up_at_its_bound(harness, behave):
    await harness.open(gateway="max_answer_bytes: 1MiB")
    backend = harness.backends[0]
    backend.behave = behave
    status, body, _ = await harness.predict()
    assert status == 502
    said = json.loads(body)["error"]
    assert "its answer is larger than 1048576 bytes" in said or "its head is larger" in said
    backend.behave = None
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert [(await harness.predict())[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("bound", [2**10, 2**20])
async def test_an_answer_up_to_its_bound_is_passed_on_and_no_byte_more(harness, bound, is_chunked):
    await harness.open(gateway=f"max_answer_bytes: {bound}")
    size = 0

    async def large(request, body):
        answer = web.Response(body=b"x" * size)
        if is_chunked:
            answer.enable_chunked_encoding()
        return answer

    harness.backends[0].behave = large
    for size, expected in ((bound, 200), (bound, 200), (bound + 1, 502)):
        status, body, _ = await harness.predict()
        assert (status, len(body) == size) == (expected, expected == 200)


async def test_two_executables_serve_on_when_one_dies_under_load(harness):
    await harness.open(backends=2)
    first, second = harness.backends
    calls = [asyncio.create_task(harness.predict()) for _ in range(40)]
    await harness.until(lambda: len(first.seen) > 3)
    first.kill_connections()
    await first.stop()
    statuses = [status for status, _, _ in await asyncio.gather(*calls)]
    assert set(statuses) <= {200, 502}
    assert statuses.count(502) <= 1  # one in flight at most
    queue = harness.queue
    assert queue.arrivals == 40 == sum(queue.completed.values()) + queue.failed


async def test_a_dying_executable_takes_down_only_what_it_was_running(harness):
    await harness.open()
    backend = harness.backends[0]

    async def dying(request, body):
        request.transport.abort()
        backend.available = False
        await asyncio.sleep(10)

    backend.behave = dying
    calls = [asyncio.create_task(harness.predict()) for _ in range(5)]
    statuses = sorted([status for status, _, _ in await asyncio.gather(*calls)])
    assert statuses == [502, 503, 503, 503, 503]
    assert len(backend.seen) == 1


async def test_one_broken_answer_holds_the_queue_for_one_look_only(harness):
    await harness.open()
    backend = harness.backends[0]

    async def broken_once(request, body):
        backend.behave = None
        request.transport.abort()
        await asyncio.sleep(10)

    backend.behave = broken_once
    calls = [asyncio.create_task(harness.predict()) for _ in range(5)]
    statuses = sorted([status for status, _, _ in await asyncio.gather(*calls)])
    assert statuses == [200, 200, 200, 200, 502]
    assert sum(harness.queue.rejected.values()) == 0


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_a_server_is_named_as_a_url_names_it(host, name):
    heads = asyncio.Queue()

    async def hear(reader, writer):
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(hear, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(host, port)
        pool.send(Message(request_template("/p"), b"{}"), print, timeout=60)
        head = await asyncio.wait_for(heads.get(), 60)
        assert f"\r\nHost: {name}:{port}\r\n".encode() in head
        await pool.close()


async def test_closing_the_connections_ends_what_is_in_flight(harness):
    await harness.open()
    backend = harness.backends[0]
    backend.gate = asyncio.Event()
    (endpoint,) = harness.service.endpoints.values()
    pool = endpoint.pool
    call = asyncio.get_running_loop().create_future()
    pool.send(Message(request_template("/v1/models/m:predict"), b"{}"), call.set_result, timeout=60)
    await harness.until(lambda: backend.running == 1)
    await pool.close()
    lost = await asyncio.wait_for(call, 10)
    assert isinstance(lost, BackendLost)
    assert "given up" in str(lost)


async def test_a_look_up_that_is_given_up_takes_no_other_request_with_it(harness):
    await harness.open()
    (endpoint,) = harness.service.endpoints.values()
    pool, answered = endpoint.pool, asyncio.get_running_loop().create_future()
    send = pool.send

    async def look():
        await pool.fetch("/v1/models/m", timeout=5)

    await look()
    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    (connection,) = [c for c in pool._all if c not in pool._idle]
    await harness.until(lambda: connection in pool._idle)  # answered, but the task has not run on
    send(Message(request_template("/v1/models/m:predict"), b"{}"), answered.set_result, timeout=5)
    looking.cancel()
    assert (await asyncio.wait_for(answered, 10)).status == 200


TRITON = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as …"


async def test_a_server_that_calls_a_wrong_input_500_breaks_no_promise(harness):
    """Triton with a `class_count` that is none, twelve times, and two executables."""
    await harness.open(backends=2)
    for backend in harness.backends:
        backend.behave = answering({"error": TRITON}, 500)
    answers = [await harness.predict(path="/v2/models/m/infer") for _ in range(12)]
    assert {(status, json.loads(body)["error"]) for status, body, _ in answers} == {(500, TRITON)}
    assert (harness.queue.invalid, harness.queue.failed, harness.queue.late) == (12, 0, 0)
    assert not any(e.ejected for e in harness.core.executors)


async def test_what_a_working_server_fails_is_late_and_ejects_nobody(harness):
    await harness.open(backends=2)
    for backend in harness.backends:
        backend.behave = answering({"error": "no kernel for this shape"}, 500)
    for _ in range(30):
        await harness.predict()
    assert (harness.queue.invalid, harness.queue.failed) == (0, 30)
    assert not any(e.ejected for e in harness.core.executors)


async def test_a_server_s_word_on_when_to_come_again_is_passed_on(harness):
    await harness.open()
    busy = answering({"error": "busy"}, 429, headers={"Retry-After": "7"})
    harness.backends[0].behave = busy
    status, _, headers = await harness.predict()
    assert (status, headers["Retry-After"]) == (429, "7")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_gateway_errors_and_bare_ones_eject(harness, status):
    await harness.open(backends=2)

    async def behave(request, body):
        return web.Response(status=status, text="Internal Server Error")

    harness.backends[0].behave = behave
    first = harness.core.executors["m.0@local"]
    await asyncio.gather(*(harness.predict() for _ in range(60)))
    assert first.ejections

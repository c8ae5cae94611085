"""Status, metadata and readiness: many clients that ask are a few requests to a model server."""

import asyncio
import gc
import json
import logging
import warnings

import aiohttp
import grpc
import pytest

from dispatcher.live import lookups
from dispatcher.live.backends.backend_address import MAX_LOOKUPS
from dispatcher.live.backends.http_client import Pool
from dispatcher.live.grpc.methods import OIP
from dispatcher.live.http import routes
from dispatcher.live.http.handler import AwaitedAnswer
from dispatcher.live.http.request import HttpRequest
from roma.domain.errors import BackendUnreachable
from roma.security import api_keys
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.test_grpc import STATUS, asking
from tests.support.keys import keys_file

Code = grpc.StatusCode
CLIENTS = 300
MANY = f"{{connections_per_address: {2 * CLIENTS}}}"
METADATA = "/v1/models/m/metadata"


async def client(harness, path, number, *lines):
    """Ask once over a connection of its own; return the answer's head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    try:
        head = "".join(f"{line}\r\n" for line in (f"X-Request-Id: {number}", *lines))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        ]
        return head.decode(), await reader.readexactly(length)
    finally:
        writer.close()


def clients(harness, paths):
    return [asyncio.create_task(client(harness, path, n)) for n, path in enumerate(paths)]


async def test_a_call_ends_though_its_pool_closes_before_it_begins_to_connect():
    """As a look-up's does whose executable is removed in the same turn of the loop."""
    pool = Pool("127.0.0.1", free_ports(1)[0])
    asked = asyncio.ensure_future(pool.fetch(METADATA, timeout=1))
    closing = asyncio.ensure_future(pool.close())
    await closing
    async with asyncio.timeout(20):
        with pytest.raises(BackendUnreachable, match="given up while connecting"):
            await asked


async def test_a_look_up_whose_client_goes_before_it_begins_is_no_warning(harness):
    await harness.open()
    request = HttpRequest("::1")
    request.head.route = routes.parse("GET", METADATA)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        harness.gateway.handle(request, AwaitedAnswer(asyncio.get_running_loop())).cancel()
        await asyncio.sleep(0)
        gc.collect()
    assert not [w for w in warned if w.category is RuntimeWarning]  # "was never awaited"
    assert harness.backends[0].lookups == []


async def test_a_look_up_that_fails_after_its_clients_have_gone_is_no_error(harness, caplog):
    await harness.open()
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    _, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(f"GET {METADATA} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await harness.until(lambda: backend.looking_up)
    writer.transport.abort()
    await harness.until(lambda: not harness.service.lookups.waiting)
    for connection in backend.open_connections:
        connection.transport.abort()
    await harness.until(lambda: not harness.service.lookups._flights)
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_hundreds_of_clients_are_one_request(harness):
    await harness.open(limits=MANY)
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    asked = clients(harness, [METADATA] * CLIENTS)
    await harness.until(lambda: harness.service.lookups.waiting == CLIENTS, limit=60)
    backend.lookup_gate.set()
    answers = await asyncio.gather(*asked)
    assert [path for _, path, _ in backend.lookups] == [METADATA]
    assert {json.loads(body)["model_spec"]["name"] for _, body in answers} == {"m"}
    # What belongs to one client goes to it alone, and to no model server.
    for number, (head, _) in enumerate(answers):
        assert head.lower().count("x-request-id") == 1
        assert f"X-Request-Id: {number}\r\n" in head
    assert "X-Request-Id" not in backend.lookups[0][2]
    assert harness.service.lookups.counts == {"executable": 1, "shared": CLIENTS - 1}


async def test_different_look_ups_are_a_few_at_once(harness):
    await harness.open(limits=MANY)
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    asked = clients(harness, [f"/v2/models/m/versions/{n}/ready" for n in range(100)])
    await harness.until(lambda: harness.service.lookups.waiting == 100, limit=60)
    await harness.until(lambda: backend.looking_up == MAX_LOOKUPS)
    # Inference does not wait behind them, nor for their connections.
    assert (await harness.predict())[0] == 200
    backend.lookup_gate.set()
    answers = await asyncio.gather(*asked)
    assert [json.loads(body)["path"] for _, body in answers] == [
        f"/v2/models/m/versions/{n}/ready" for n in range(100)
    ]
    assert backend.most_looking_up == MAX_LOOKUPS
    assert len({peer for peer, _, _ in backend.lookups}) <= MAX_LOOKUPS + 2


async def test_an_answer_is_kept_for_a_second(harness):
    await harness.open()
    (backend,) = harness.backends
    harness.stop_clock()
    for _ in range(3):
        assert (await harness.get(METADATA))[0] == 200
    assert len(backend.lookups) == 1
    harness.stop_clock(lookups.MAX_AGE * 0.99)
    await harness.get(METADATA)
    assert len(backend.lookups) == 1
    harness.stop_clock(lookups.MAX_AGE * 0.01)
    await harness.get(METADATA)
    assert len(backend.lookups) == 2


async def test_an_error_is_kept_no_longer(harness):
    await harness.open()
    (backend,) = harness.backends
    harness.stop_clock()
    backend.lookup_status = 503
    assert [(await harness.get("/v2/models/m/ready"))[0] for _ in range(2)] == [503, 503]
    backend.lookup_status = 200
    harness.stop_clock(lookups.MAX_AGE)
    assert (await harness.get("/v2/models/m/ready"))[0] == 200
    assert len(backend.lookups) == 2


async def test_what_broke_off_is_asked_again(harness):
    await harness.open()
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    asked = clients(harness, [METADATA] * 3)
    await harness.until(lambda: harness.service.lookups.waiting == 3 and backend.lookups)
    backend.kill_connections()
    assert {head[9:12] for head, _ in await asyncio.gather(*asked)} == {"502"}
    backend.lookup_gate.set()
    assert (await harness.get(METADATA))[0] == 200


async def test_nothing_is_kept_of_an_executable_that_is_gone(harness):
    await harness.open()
    assert (await harness.get(METADATA))[0] == 200
    harness.stop_clock()
    assert (await harness.get(METADATA))[0] == 200
    await harness.backends[0].stop()
    await harness.until(lambda: not any(e.live for e in harness.core.executors))
    assert (await harness.get(METADATA))[0] == 503


async def test_a_client_that_hangs_up_leaves_the_answer_to_the_others(harness):
    await harness.open()
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    first = clients(harness, [METADATA])
    await harness.until(lambda: backend.looking_up == 1)
    second = clients(harness, [METADATA])
    await harness.until(lambda: harness.service.lookups.waiting == 2)
    first[0].cancel()
    await harness.until(lambda: harness.service.lookups.waiting == 1)
    backend.lookup_gate.set()
    head, _ = await second[0]
    assert head[9:12] == "200"
    assert len(backend.lookups) == 1


async def test_clients_that_ask_and_hang_up_make_no_more_connections(harness):
    await harness.open()
    (backend,) = harness.backends
    backend.lookup_gate = asyncio.Event()
    for n in range(20):
        (asked,) = clients(harness, [f"/v2/models/m/versions/{n}"])
        await harness.until(lambda: harness.service.lookups.waiting == 1)
        await harness.until(lambda n=n: backend.looking_up == min(n + 1, MAX_LOOKUPS))
        asked.cancel()
        await harness.until(lambda: harness.service.lookups.waiting == 0)
    backend.lookup_gate.set()
    await harness.until(lambda: backend.looking_up == 0)
    assert (await harness.get(METADATA))[0] == 200
    # Those that waited for their turn are not asked any more.
    assert len(backend.lookups) == MAX_LOOKUPS + 1


async def test_large_answers_leave_no_more_than_their_bound(harness, monkeypatch):
    monkeypatch.setattr(lookups, "MAX_BYTES", 5000)
    await harness.open()
    harness.stop_clock()
    for n in range(20):
        await harness.get(f"/v2/models/m/versions/{n}")
    kept = harness.service.lookups
    assert 0 < kept._bytes <= 5000
    assert len(kept._kept) == 4
    await harness.get("/v2/models/m/versions/19")  # the newest are kept
    assert len(harness.backends[0].lookups) == 20


@pytest.fixture
async def guarded(harness, tmp_path):
    """A gateway with a caller for its model and one for another."""
    harness.tokens = {
        "all": api_keys.new_token("aaaaaaaa"),
        "other": api_keys.new_token("bbbbbbbb"),
    }
    everything, elsewhere = harness.tokens.values()
    file = keys_file(tmp_path, {everything: {}, elsewhere: {"models": ["elsewhere"]}})
    await harness.open(gateway=f"keys: {file}", speaks_grpc=True)
    return harness


async def test_a_key_is_checked_before_a_kept_answer(guarded):
    def bearer(name):
        return (("authorization", f"Bearer {guarded.tokens[name]}"),)

    async def status(*names):
        lines = [f"Authorization: Bearer {guarded.tokens[name]}" for name in names]
        head, _ = await client(guarded, METADATA, 1, *lines)
        return head[9:12]

    assert [await status("all"), await status("other"), await status()] == ["200", "403", "401"]
    asked = [
        (await guarded.call(STATUS, asking(STATUS), metadata=metadata))[0]
        for metadata in (bearer("all"), bearer("other"), ())
    ]
    assert asked == [Code.OK, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED]


async def test_grpc_shares_by_method_and_message(harness):
    await harness.open(speaks_grpc=True)
    (backend,) = harness.grpc_backends
    backend.gate = asyncio.Event()
    ready = f"/{OIP}/ModelReady"
    asked = [
        asyncio.create_task(
            harness.call(path, asking(path), metadata=(("x-request-id", f"{path}{n}"),))
        )
        for n in range(20)
        for path in (STATUS, ready)
    ]
    other = asyncio.create_task(harness.call(STATUS, asking(STATUS, more=b"\x12\x03xyz")))
    await harness.until(lambda: harness.service.lookups.waiting == 41, limit=60)
    backend.gate.set()
    answers = await asyncio.gather(*asked)
    for number, (code, body, _, trailing) in enumerate(answers):
        path = (STATUS, ready)[number % 2]
        assert (code, body) == (Code.OK, asking(path))
        assert trailing["x-request-id"] == f"{path}{number // 2}"
    assert (await other)[1] == asking(STATUS, more=b"\x12\x03xyz")
    assert len(backend.seen) == 3
    assert not any(dict(metadata).get("x-request-id") for _, metadata, _, _ in backend.seen)


async def test_a_bug_in_a_look_up_costs_one_connection(harness, monkeypatch, caplog):
    await harness.open()

    async def broken(route):
        raise RuntimeError("bug")

    monkeypatch.setattr(harness.service.lookups, "http", broken)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await harness.get("/v1/models/m/metadata")
    assert "bug" in caplog.text
    assert (await harness.predict())[0] == 200

"""What a call may take at the gRPC port before it is let in, while it is read, and with others."""

import asyncio
import contextlib
import json
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dispatcher.live.grpc import call_limits
from dispatcher.live.reloading import Reloading
from roma.domain.errors import ConfigError
from roma.security import api_keys
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import aborting
from tests.protocol.gateway.test_grpc import INFER, OIP, PREDICT, STATUS, asking
from tests.support import http2
from tests.support.keys import keys_file

Code = grpc.StatusCode
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
LARGE = 30 * 2**20
TOKENS = {name: api_keys.new_token(8 * name) for name in "cn"}


def number(code):
    return code.value[0]


def sized(size):
    """A PredictRequest for model m of so many bytes and a few."""
    length, varint = size, b""
    while length > 127:
        varint, length = varint + bytes((length & 127 | 128,)), length >> 7
    return asking(PREDICT) + b"\x1a" + varint + bytes((length,)) + bytes(size)


def bearer(name):
    return (("authorization", f"Bearer {TOKENS[name]}"),)


@pytest.fixture
async def raw(harness):
    """Connect a client that writes frames; closed at the end."""
    clients = []

    async def connect(address="127.0.0.1"):
        clients.append(await http2.connected(harness.grpc_port, address))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
async def guarded(harness, tmp_path, monkeypatch):
    """A gateway with a caller of model m, one at a time, and one of another model."""
    monkeypatch.setattr(call_limits, "UNAUTHENTICATED_TIMEOUT", 60.0)
    callers = {
        TOKENS["c"]: {"models": ["m"], "concurrency": 1},
        TOKENS["n"]: {"models": ["elsewhere"]},
    }
    file = keys_file(tmp_path, callers)
    await harness.open(gateway=f"keys: {file}", speaks_grpc=True, max_body=2**25)
    return harness


async def test_a_body_may_be_larger_than_any_message(harness):
    await harness.open(speaks_grpc=True, max_body=2**31)
    assert (await harness.call(PREDICT, asking(PREDICT)))[0] == Code.OK


async def ended(client):
    async with asyncio.timeout(20):
        await client.ended.wait()
    return client.status


# Before the message


@pytest.mark.parametrize(
    ("path", "metadata", "code"),
    [
        (PREDICT, [], Code.UNAUTHENTICATED),
        (INFER, [(b"authorization", b"Bearer roma_nonsense")], Code.UNAUTHENTICATED),
        (STATUS, [], Code.UNAUTHENTICATED),
        (f"/{OIP}/ServerMetadata", [], Code.UNAUTHENTICATED),
        (f"/{OIP}/ServerLive", [], Code.OK),
        ("/no.Service/Method", [], Code.UNIMPLEMENTED),
    ],
)
async def test_a_strangers_message_is_not_read(guarded, raw, path, metadata, code):
    client = await raw()
    client.begin(path, *metadata)
    client.announce(LARGE)
    await client.pour(100)  # and no more until there is an answer
    assert await ended(client) == number(code)


async def test_a_stranger_who_sends_on_is_cut_short(guarded, raw):
    client = await raw()
    client.begin(PREDICT)
    client.announce(LARGE)
    async with asyncio.timeout(20):
        await client.pour(LARGE - 1)
    assert client.status == number(Code.UNAUTHENTICATED)
    assert client.sent < LARGE / 2  # gRPC's window, 4 to 16 MiB, if the answer comes late


async def test_a_callers_message_is_read_to_its_end(guarded, raw):
    client = await raw()
    client.begin(PREDICT, (b"authorization", f"Bearer {TOKENS['c']}".encode()))
    client.announce(LARGE)
    async with asyncio.timeout(20):
        await client.pour(LARGE - 1)
    assert (client.sent, client.status) == (LARGE + 4, None)  # it is waited for
    busy = await guarded.call(PREDICT, asking(PREDICT), metadata=bearer("c"))
    assert (busy[0], busy[3]["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
    await client.pour(1)
    assert await ended(client) == number(Code.INVALID_ARGUMENT)  # zeros are no protobuf
    assert (await guarded.call(PREDICT, asking(PREDICT), metadata=bearer("c")))[0] is Code.OK


async def test_a_call_without_a_message_is_told_so(harness):
    await harness.open(speaks_grpc=True)
    async with harness.channel as channel:
        for path in (PREDICT, CHECK):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.stream_unary(path)(iter(()))
            assert error.value.code() is Code.INVALID_ARGUMENT
            assert error.value.details() == "The call has no message"


# What need not be asked with a key


async def test_health_questions_that_are_held_back_make_room_for_others(guarded, raw):
    slow = []
    for path in [CHECK, WATCH] * (call_limits.UNAUTHENTICATED_CALLS // 2):
        slow.append(await raw())
        slow[-1].begin(path)
        slow[-1].announce(LARGE)
        await slow[-1].pour(100)
    async with guarded.channel as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def check():
            answer = await health.Check(health_pb2.HealthCheckRequest(service="m"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            await asyncio.sleep(0.01)

        def told():
            return [client.status for client in slow if client.ended.is_set()]

        async with asyncio.timeout(20):  # until the gateway has come to all of the slow ones
            while not told():
                await check()
        await check()  # it finds the room that the one before it made
        assert told() == [number(Code.DEADLINE_EXCEEDED)]


async def test_who_watches_without_a_key_holds_nothing(guarded):
    async with guarded.channel as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="m"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert guarded.server.buffered == 0
        long = health.Watch(
            health_pb2.HealthCheckRequest(service="m" * call_limits.MAX_HEALTH_MESSAGE)
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await long.read()
        assert error.value.code() is Code.RESOURCE_EXHAUSTED


async def test_who_watches_without_a_key_takes_at_most_half_of_the_calls(guarded):
    """A new one takes the place of the oldest, which is told the status and ends."""
    guarded.bound(connections=8)
    async with guarded.channel as channel:
        stub, watches = health_pb2_grpc.HealthStub(channel), []
        for _ in range(7):
            watches.append(stub.Watch(health_pb2.HealthCheckRequest(service="m")))
            await watches[-1].read()
        for ended in watches[:3]:
            assert await ended.code() is Code.OK
        assert not any(watch.done() for watch in watches[3:])
        assert (await guarded.call(PREDICT, sized(5000), metadata=bearer("c")))[0] is Code.OK


async def test_answers_that_nobody_reads_take_at_most_half_of_the_memory(guarded, raw):
    """Nothing else bounds how long they are kept."""
    guarded.bound(buffered_bytes=1 << 20)

    async def large(request, context):
        return bytes(400_000)

    guarded.grpc_backends[0].behave = large
    for held in (400_000, 400_000):  # the second answer is refused
        client = await raw()
        client.begin(PREDICT, (b"authorization", f"Bearer {TOKENS['c']}".encode()))
        client.whole(sized(5000))
        await guarded.until(
            lambda: guarded.service.driver.core.live == 0 and guarded.queue.completed
        )
        await guarded.until(lambda held=held: guarded.server.unsent == held)
    assert await ended(client) == number(Code.RESOURCE_EXHAUSTED)
    await client.close()


async def test_a_health_question_has_little_time(guarded, raw, monkeypatch):
    monkeypatch.setattr(call_limits, "UNAUTHENTICATED_TIMEOUT", 0.1)
    client = await raw()
    client.begin(CHECK)
    assert await ended(client) == number(Code.DEADLINE_EXCEEDED)


async def test_a_health_question_that_is_no_protobuf(harness):
    await harness.open(speaks_grpc=True)
    code, _, text, _ = await harness.call(CHECK, b"\xff")
    assert (code, text.partition(":")[0]) == (Code.INVALID_ARGUMENT, "The request cannot be read")


# Messages of all calls together


async def test_messages_of_both_doors_together_are_bounded(harness):
    await harness.open(speaks_grpc=True, max_body=2**21, limits="{buffered_bytes: 1048576}")
    harness.grpc_backends[0].gate = asyncio.Event()
    message = sized(400_000)
    async with harness.channel as channel:
        calls = [
            asyncio.create_task(harness.call(PREDICT, message, channel=channel)) for _ in range(2)
        ]
        await harness.until(lambda: harness.server.buffered == 2 * len(message))
        code, _, text, trailing = await harness.call(PREDICT, message, channel=channel)
        assert (code, trailing["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
        assert text == f"{3 * len(message)} bytes of requests and answers are held: limit reached"
        assert (await harness.predict(body=bytes(400_000)))[0] == 503
        assert harness.server.buffered == 2 * len(message)
        small = asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))
        await harness.until(lambda: len(harness.queue) == 2)
        harness.grpc_backends[0].gate.set()
        assert [c[0] for c in await asyncio.gather(*calls, small)] == [Code.OK] * 3
    assert harness.server.buffered == 0


async def test_a_message_is_not_even_read_while_there_is_no_room(harness, raw):
    await harness.open(speaks_grpc=True, limits="{buffered_bytes: 1048576}")
    harness.server.buffered += 2**20
    client = await raw()
    client.begin(PREDICT)
    assert await ended(client) == number(Code.RESOURCE_EXHAUSTED)
    harness.server.buffered -= 2**20


async def end_answered(harness, raw):
    assert (await harness.call(PREDICT, sized(5000), metadata=bearer("c")))[0] is Code.OK


async def end_failed(harness, raw):
    harness.grpc_backends[0].behave = aborting(Code.INTERNAL, "boom")
    assert (await harness.call(PREDICT, sized(5000), metadata=bearer("c")))[0] is Code.INTERNAL
    harness.grpc_backends[0].behave = None


async def end_looked_up(harness, raw):
    assert (await harness.call(STATUS, asking(STATUS), metadata=bearer("c")))[0] is Code.OK


async def end_not_this_model(harness, raw):
    answer = await harness.call(PREDICT, sized(5000), metadata=bearer("n"))
    assert answer[0] is Code.PERMISSION_DENIED


async def end_no_protobuf(harness, raw):
    answer = await harness.call(PREDICT, b"\xff" * 5000, metadata=bearer("c"))
    assert answer[0] is Code.INVALID_ARGUMENT


async def end_bad_priority(harness, raw):
    metadata = (*bearer("c"), ("x-request-priority", "urgent"))
    answer = await harness.call(PREDICT, sized(5000), metadata=metadata)
    assert answer[0] is Code.INVALID_ARGUMENT


async def end_too_large(harness, raw):
    answer = await harness.call(PREDICT, sized(2**25), metadata=bearer("c"))
    assert answer[0] is Code.RESOURCE_EXHAUSTED


async def end_too_slow(harness, raw):
    harness.bound(body_timeout=0.1)
    client = await begun(raw)
    assert await ended(client) == number(Code.DEADLINE_EXCEEDED)


async def end_half_sent(harness, raw):
    client = await begun(raw)
    async with asyncio.timeout(20):  # it is being read once it takes the only place
        while (await harness.call(f"/{OIP}/ServerLive", b""))[0] is Code.OK:
            await asyncio.sleep(0.01)
    client.writer.transport.abort()


async def end_cancelled(harness, raw):
    await end_in_flight(harness, lambda call: call.cancel())
    assert harness.queue.cancelled == 1


async def end_past_its_deadline(harness, raw):
    harness.grpc_backends[0].gate = asyncio.Event()
    answer = await harness.call(PREDICT, sized(5000), metadata=bearer("c"), timeout=0.5)
    assert answer[0] is Code.DEADLINE_EXCEEDED
    await harness.until(lambda: harness.server.buffered == 0)
    harness.grpc_backends[0].gate.set()
    harness.grpc_backends[0].gate = None


async def begun(raw):
    client = await raw()
    client.begin(PREDICT, (b"authorization", f"Bearer {TOKENS['c']}".encode()))
    client.announce(5000)
    await client.pour(100)
    return client


async def end_in_flight(harness, end):
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    async with harness.channel as channel:
        call = channel.unary_unary(PREDICT)(sized(5000), metadata=bearer("c"))
        await harness.until(lambda: backend.running == 1)
        assert harness.server.buffered == len(sized(5000))
        end(call)
        await call.code()
        # Its body is given back at once, its caller's one place when the model server has ended.
        await harness.until(lambda: harness.server.buffered == 0)
        code, *_, trailing = await harness.call(STATUS, asking(STATUS), metadata=bearer("c"))
        assert (code, trailing["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
        assert (backend.running, backend.cancelled) == (1, 0)
        backend.gate.set()
    backend.gate = None


@pytest.mark.parametrize(
    "end",
    [
        end_answered,
        end_failed,
        end_looked_up,
        end_not_this_model,
        end_no_protobuf,
        end_bad_priority,
        end_too_large,
        end_too_slow,
        end_half_sent,
        end_cancelled,
        end_past_its_deadline,
    ],
)
async def test_however_a_call_ends_what_it_held_is_given_back(guarded, raw, end):
    guarded.bound(connections=1, connections_per_address=1)
    await end(guarded, raw)

    async def is_free():  # for a look-up, which waits for no executor
        return (await guarded.call(STATUS, asking(STATUS), metadata=bearer("c")))[0] is Code.OK

    async with asyncio.timeout(20):
        while not await is_free():
            await asyncio.sleep(0.01)
    await guarded.until(lambda: guarded.server.buffered == 0)


# Calls


async def test_open_calls_are_bounded_by_address_and_in_all(harness, raw):
    await harness.open(speaks_grpc=True, limits="{connections: 3, connections_per_address: 2}")
    harness.grpc_backends[0].gate = asyncio.Event()
    async with harness.channel as channel:
        first = channel.unary_unary(PREDICT)(asking(PREDICT))
        await harness.until(lambda: harness.grpc_backends[0].running == 1)
        second = channel.unary_unary(PREDICT)(asking(PREDICT))
        await harness.until(lambda: harness.queue.arrivals == 2)
        for path in (PREDICT, STATUS, CHECK, f"/{OIP}/ServerLive"):
            code, _, text, trailing = await harness.call(path, asking(PREDICT), channel=channel)
            assert (code, trailing["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
            assert text == "2 calls of one address are open: limit reached"
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await reflection.ServerReflectionInfo(iter(())).read()
        assert error.value.code() is Code.RESOURCE_EXHAUSTED
        assert (await harness.predict(path="/v1/models/x:predict"))[0] == 404  # HTTP counts its own

        third, fourth = await raw("127.0.0.2"), await raw("127.0.0.3")
        for client in (third, fourth):  # their messages never come
            client.begin(PREDICT)
        await harness.until(lambda: third.ended.is_set() or fourth.ended.is_set())
        second.cancel()
        await harness.until(lambda: harness.queue.cancelled == 1)
        later = channel.unary_unary(PREDICT)(asking(PREDICT))
        harness.grpc_backends[0].gate.set()
        assert await first == await later == asking(PREDICT)
        assert {third.status, fourth.status} == {None, number(Code.RESOURCE_EXHAUSTED)}


# What a reload changes


async def reload(harness, tmp_path, *replacements):
    text = harness.text
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "roma.yaml"
    file.write_text(text)
    await Reloading(file, lambda read: read, harness.registry, harness.server).take_over()


async def test_a_reload_makes_limits_less_and_again_what_they_were(harness, tmp_path):
    await harness.open(speaks_grpc=True, max_body=5000, limits="{head_bytes: 4000}")
    cookie = (("cookie", "x" * 2500),)

    async def codes():
        return [
            (await harness.call(PREDICT, sized(3000)))[0],
            (await harness.call(PREDICT, asking(PREDICT), metadata=cookie))[0],
            (await harness.call(PREDICT, asking(PREDICT)))[0],
        ]

    assert await codes() == [Code.OK] * 3
    await reload(harness, tmp_path, ("bytes: 5000", "bytes: 2000"), ("bytes: 4000", "bytes: 2000"))
    assert await codes() == [Code.RESOURCE_EXHAUSTED] * 2 + [Code.OK]
    code, _, text, _ = await harness.call(PREDICT, sized(3000))
    assert text == f"message of {len(sized(3000))} bytes: larger than max (2000)"
    with pytest.raises(ConfigError, match=r"max_body_bytes = 6000: .*5000: takes a restart"):
        await reload(harness, tmp_path, ("bytes: 5000", "bytes: 6000"))
    assert await codes() == [Code.RESOURCE_EXHAUSTED] * 2 + [Code.OK]
    await reload(harness, tmp_path)
    assert await codes() == [Code.OK] * 3


async def test_a_reload_changes_how_many_calls_may_be_open(harness, tmp_path):
    await harness.open(speaks_grpc=True, limits="{connections: 2}")
    harness.grpc_backends[0].gate = asyncio.Event()
    async with harness.channel as channel:

        def begin():
            return asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))

        calls = [begin(), begin()]
        await harness.until(lambda: harness.queue.arrivals == 2)
        assert (await begin())[0] is Code.RESOURCE_EXHAUSTED
        await reload(harness, tmp_path, ("connections: 2", "connections: 3"))
        calls.append(begin())
        await harness.until(lambda: harness.queue.arrivals == 3)
        await reload(harness, tmp_path, ("connections: 2", "connections_per_address: 1"))
        assert (await begin())[2].startswith("1 calls of one address")
        harness.grpc_backends[0].gate.set()
        assert [call[0] for call in await asyncio.gather(*calls)] == [Code.OK] * 3


async def test_questions_of_reflection_are_bounded_as_well(harness, tmp_path):
    await harness.open(speaks_grpc=True, max_body=5000)
    await reload(harness, tmp_path, ("bytes: 5000", "bytes: 2000"))
    asked = reflection_pb2.ServerReflectionRequest
    async with harness.channel as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(asked(list_services=""))
        assert (await call.read()).HasField("list_services_response")
        await call.write(asked(list_services="x" * 3000))
        assert await call.code() is Code.RESOURCE_EXHAUSTED
    assert harness.server.buffered == 0


@pytest.mark.parametrize("name", ["x-api-key", "authorization"])
async def test_two_keys_are_none_as_over_http(guarded, name):
    value = TOKENS["c"] if name == "x-api-key" else f"Bearer {TOKENS['c']}"
    for count, expected in ((1, Code.OK), (2, Code.UNAUTHENTICATED)):
        pairs = count * ((name, value),)
        code, *_ = await guarded.call(PREDICT, asking(PREDICT), metadata=pairs)
        assert code is expected
        async with guarded.session.get(f"{guarded.url}/v1/models/m", headers=pairs) as response:
            assert response.status == (200 if count == 1 else 401)


async def test_a_key_that_is_no_text_is_not_logged(guarded, raw, caplog):
    """Such as one that was copied with a quotation mark behind it, in Latin-1."""
    client = await raw()
    client.begin(PREDICT, (b"authorization", b"Bearer " + TOKENS["c"].encode() + b"\xbb"))
    assert await ended(client) == number(Code.UNAUTHENTICATED)
    assert TOKENS["c"] not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_clients_send_is_no_line_of_the_log(tmp_path):
    port, admin, grpc_port = free_ports(3)
    file = tmp_path / "roma.yaml"
    file.write_text(
        f"""
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{backend: static, cores: 1, executables: [{{url: 'http://127.0.0.1:1', model: m}}]}}]
gateway: {{port: {port}, admin_port: {admin}, grpc_port: {grpc_port}}}
log: {{format: json}}
"""
    )
    command = [sys.executable, "-m", "roma", "dispatcher", str(file)]
    program = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(60):
            said = await program.stderr.readuntil(b"for gRPC")
            client = await http2.connected(grpc_port)
            client.begin(PREDICT, (b"grpc-timeout", b"soon"))
            assert await ended(client) == number(Code.INTERNAL)
            await client.close()
            program.terminate()
            said += await program.stderr.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()
    assert all(json.loads(line)["level"] for line in said.splitlines())


# Connections, which gRPC bounds itself


@contextlib.asynccontextmanager
async def silent(port, count=1):
    """Connect and say nothing; yield each one's reader, and the first byte that it was sent."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        async with asyncio.timeout(20):
            yield [(reader, await reader.read(1)) for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.transport.abort()


async def test_connections_of_the_grpc_port_are_bounded(harness):
    await harness.open(with_grpc=True, limits="{connections: 2}")
    async with silent(harness.grpc_port, 3) as found:  # who is accepted gets gRPC's settings
        assert [bool(first) for _, first in found] == [True, True, False]


async def test_a_grpc_connection_that_says_nothing_is_closed(harness):
    await harness.open(with_grpc=True, limits="{head_timeout: 0.2, idle_timeout: 0.2}")
    async with silent(harness.grpc_port) as ((reader, _),):
        await reader.read()


async def test_a_grpc_client_that_was_idle_too_long_calls_again(harness):
    await harness.open(with_grpc=True, limits="{idle_timeout: 0.1}")
    async with harness.channel as channel:
        for _ in range(2):
            code, *_ = await harness.call(f"/{OIP}/ServerLive", b"", channel=channel)
            assert code is Code.OK
            await harness.until(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE)

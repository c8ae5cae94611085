"""Executables that die, refuse or hang under gRPC: each call ends once, and none runs twice."""

import asyncio

import grpc
import pytest

from dispatcher.live import health_checks
from dispatcher.live.backends.backend_address import GrpcMessage
from dispatcher.live.grpc.channel import GrpcChannel
from roma.domain.errors import BackendLost, BackendTimeout, BackendUnreachable
from tests.protocol.gateway.conftest import aborting
from tests.protocol.gateway.test_grpc import PREDICT, STATUS, asking

Code = grpc.StatusCode


async def test_an_executable_that_dies_fails_what_it_ran_once(harness):
    await harness.open(speaks_grpc=True, backends=2)
    first, second = harness.grpc_backends
    first.gate = second.gate = asyncio.Event()
    async with harness.channel as channel:
        calls = [
            asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))
            for _ in range(2)
        ]
        await harness.until(lambda: first.running == second.running == 1)
        await first.stop()
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        (failed,) = [call.result() for call in calls if call.done()]
        assert failed[0] is Code.INTERNAL
        assert failed[2].startswith("executable m.0@local: connection closed before the answer")
        second.gate.set()
        codes = sorted(call[0].name for call in await asyncio.gather(*calls))
    assert codes == ["INTERNAL", "OK"]
    assert (len(first.seen), len(second.seen)) == (1, 1)  # nothing was repeated
    assert harness.queue.failed == 1


async def test_an_executable_that_comes_back_is_used_again(harness):
    await harness.open(speaks_grpc=True)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    call = asyncio.create_task(harness.call(PREDICT, asking(PREDICT)))
    await harness.until(lambda: backend.running == 1)
    await backend.stop()
    assert (await call)[0] is Code.INTERNAL
    await harness.until(lambda: not any(harness.core.executors.of("m")))
    code, _, text, trailing = await harness.call(PREDICT, asking(PREDICT))
    assert (code, int(trailing["retry-after"])) == (Code.UNAVAILABLE, 1)
    assert "m" in text
    backend.gate = None
    await backend.start()
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.call(PREDICT, asking(PREDICT)))[0] is Code.OK


async def test_a_call_that_never_left_runs_on_another_executable(harness):
    await harness.open(speaks_grpc=True, backends=2)
    dead, alive = harness.grpc_backends
    name = next(e.spec.name for e in harness.core.executors)
    await dead.stop()
    channel = harness.service.endpoints[name].channel
    await harness.until(lambda: channel._channel.get_state() is not grpc.ChannelConnectivity.READY)
    codes = [(await harness.call(PREDICT, asking(PREDICT)))[0] for _ in range(4)]
    assert codes == [Code.OK] * 4
    assert (len(dead.seen), len(alive.seen)) == (0, 4)
    assert harness.queue.failed == 0


async def test_an_executable_that_never_answers_is_cut_off(harness):
    await harness.open(speaks_grpc=True, timeout=0.3)
    backend = harness.grpc_backends[0]
    backend.gate = asyncio.Event()
    code, _, text, _ = await harness.call(PREDICT, asking(PREDICT))
    assert code is Code.INTERNAL
    assert text == "executable m.0@local: no answer within 0.3 s"
    code, _, text, _ = await harness.call(STATUS, asking(STATUS))
    assert code is Code.DEADLINE_EXCEEDED
    assert text == "executable m.0@local: no answer within 0.3 s"
    backend.gate = None
    async with asyncio.timeout(60):  # the next answer, too, may take longer than 0.3 s
        while (await harness.call(PREDICT, asking(PREDICT)))[0] is not Code.OK:
            assert harness.queue.failed


async def test_a_look_up_without_an_executable_is_unavailable(harness):
    await harness.open(speaks_grpc=True, start=False)
    code, _, text, trailing = await harness.call(STATUS, asking(STATUS))
    assert (code, text) == (Code.UNAVAILABLE, "no executable of model m is ready")
    assert trailing["retry-after"] == "1"


async def test_a_server_that_is_unavailable_by_its_own_word_is_not_suspected(harness):
    await harness.open(speaks_grpc=True)

    harness.grpc_backends[0].behave = aborting(Code.UNAVAILABLE, "warming up")
    assert (await harness.call(PREDICT, asking(PREDICT)))[0::2][:2] == (
        Code.UNAVAILABLE,
        "warming up",
    )
    assert not any(executor.suspected for executor in harness.core.executors)


async def test_an_answer_beyond_its_bound_is_that_executables_fault(harness):
    await harness.open(speaks_grpc=True, gateway="max_answer_bytes: 1MiB")
    backend = harness.grpc_backends[0]

    async def large(request, context):
        return b"x" * (2**20 + 1)

    backend.behave = large
    _, _, text, _ = await harness.call(PREDICT, asking(PREDICT))
    assert "its answer is larger than 1048576 bytes" in text
    backend.behave = None
    await harness.until(lambda: any(harness.core.executors.of("m")))
    assert (await harness.call(PREDICT, asking(PREDICT)))[0] is Code.OK


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Code.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 8)"),
        (Code.INVALID_ARGUMENT, "\U0001f600" * 10_000),  # percent-encoded: 120 kB
    ],
)
async def test_a_request_that_a_server_cannot_take_is_the_client_s_fault(harness, code, text):
    await harness.open(speaks_grpc=True)

    harness.grpc_backends[0].behave = aborting(code, text)
    found, _, said, _ = await harness.call(PREDICT, asking(PREDICT))
    assert found is code
    assert text[:100] in said
    assert harness.queue.failed == 0
    assert not any(executor.suspected for executor in harness.core.executors)


# The channel alone


@pytest.fixture
async def reached(harness):
    """A model server and a channel to it."""
    await harness.open(speaks_grpc=True)
    backend = harness.grpc_backends[0]
    channel = GrpcChannel("127.0.0.1", backend.port)
    async with asyncio.timeout(60):  # a busy machine may take longer than one attempt does
        while isinstance(await post(channel)[1], BackendUnreachable):
            await asyncio.sleep(0.05)
    backend.seen.clear()
    yield harness, backend, channel
    await channel.close()


def post(channel, body=b"x", timeout=10, more=""):
    answer = asyncio.get_running_loop().create_future()
    attempt = channel.send(
        GrpcMessage("/a.B/C", body), answer.set_result, timeout=timeout, more=more
    )
    return attempt, answer


async def test_errors_say_whether_the_call_may_have_run(reached):
    harness, backend, channel = reached
    backend.gate = asyncio.Event()
    _, answer = post(channel, timeout=0.2)
    assert isinstance(await answer, BackendTimeout)
    _, answer = post(channel, timeout=0.3, more="X-Request-Timeout-Ms: 100\r\n")
    assert isinstance(await answer, BackendTimeout)  # the client's own deadline ends nothing here
    _, answer = post(channel)
    await harness.until(lambda: backend.running == 1)
    await backend.stop()
    assert isinstance(await answer, BackendLost)
    _, answer = post(channel)
    assert isinstance(await answer, BackendUnreachable)


async def test_what_is_given_up_tells_nobody_but_the_model_server(reached):
    harness, backend, channel = reached
    backend.gate = asyncio.Event()
    attempt, answer = post(channel)
    await harness.until(lambda: backend.running == 1)
    attempt.abort()
    await harness.until(lambda: backend.cancelled == 1)
    attempt, unsent = post(channel)
    attempt.abort()  # before it left
    backend.gate = None
    _, third = post(channel, b"third")
    assert (await third).body == b"third"
    assert not answer.done()
    assert not unsent.done()
    assert [seen[2] for seen in backend.seen] == [b"x", b"third"]


async def test_closing_ends_what_is_in_flight(reached):
    harness, backend, channel = reached
    backend.gate = asyncio.Event()
    _, answer = post(channel)
    await harness.until(lambda: backend.running == 1)
    await channel.close()
    lost = await asyncio.wait_for(answer, 10)
    assert isinstance(lost, BackendLost)
    assert "given up" in str(lost)
    _, answer = post(channel)
    assert isinstance(await answer, BackendUnreachable)


@pytest.mark.parametrize("front_ends", ["both", "grpc"])
async def test_a_server_that_shuts_down_ends_what_it_runs(harness, front_ends, monkeypatch):
    """It sends GOAWAY and refuses connections; the other front end may still answer."""
    monkeypatch.setattr(health_checks, "CHECK", 0.05)
    await harness.open(speaks_grpc=True, backends=2)
    first, second = harness.grpc_backends
    executor = harness.core.executors["m.0@local"]
    first.gate = asyncio.Event()
    async with harness.channel as channel:
        calls = [
            asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel))
            for _ in range(3)
        ]
        await harness.until(lambda: first.running == 1 and len(second.seen) == 2)
        if front_ends == "both":
            await harness.backends[0].refuse()
        stopping = await first.shut_down()
        calls.append(asyncio.create_task(harness.call(PREDICT, asking(PREDICT), channel=channel)))
        await harness.until(lambda: harness.service.reasons.unreached)  # a health check has ended
        assert (first.running, executor.suspected, executor.losses) == (1, True, 0)
        first.gate.set()
        assert [call[0] for call in await asyncio.gather(*calls)] == [Code.OK] * 4
        await stopping
        await harness.until(lambda: not executor.live)
    assert harness.queue.failed == 0

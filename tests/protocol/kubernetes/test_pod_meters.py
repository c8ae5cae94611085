"""Readings of model servers in pods: a pod may answer anything."""

import asyncio
import contextlib
import itertools
from dataclasses import replace

import pytest
from aiohttp import web

from roma.kubernetes.pods import CPU_PATH, parse
from roma.tools.demo.ports import free_ports
from supervisor.actuators.pod_connection import MOST_BYTES
from supervisor.actuators.pod_meters import ServerMeters
from tests.support.fake_api_server import pod
from tests.support.waiting import until

SOUND = '{"cores": 0.5, "usage": 3, "periods": 7, "throttled": 1}'


@pytest.fixture
async def answers():
    """A model server; its answers, the last of which is repeated, and the meters that ask it."""
    texts, (port,) = [], free_ports(1)

    async def answer(_):
        return web.Response(text=texts.pop(0) if len(texts) > 1 else texts[0])

    app = web.Application()
    app.router.add_get(CPU_PATH, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    meters = ServerMeters(port=port, period=0.05)
    yield texts, meters
    await meters.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "text",
    [
        SOUND.replace("0.5", "NaN"),
        SOUND.replace("0.5", "1e999"),
        SOUND.replace("0.5", "-1"),
        SOUND.replace("3", '"Infinity"'),
        SOUND.replace("7", "1" + 30 * "0"),
        "{}",
        "[" * 2000,
    ],
)
async def test_a_reading_that_no_cgroup_has_is_none(answers, text, caplog):
    texts, meters = answers
    texts += [text]
    pods, found = {"a@w": parse(pod("a"), "model-server")}, []

    def has_read():
        found.append(meters.read(pods)["a@w"])
        return found[-1] is not None

    told = "an answer to GET /roma/v1/cpu that is no reading"
    await until(lambda: has_read() or told in caplog.text)
    assert found[-1] is None
    texts[:] = [SOUND]
    await until(has_read)
    assert (found[-1].cores, found[-1].usage) == (0.5, 3.0)


async def test_nothing_is_kept_of_a_pod_that_went_while_it_could_not_be_read(answers):
    texts, meters = answers
    texts.append("{}")
    pods = {"a@w": parse(pod("a"), "model-server")}
    await until(lambda: not meters.read(pods)["a@w"] and meters._unread)
    await until(lambda: not meters.read({}) and not meters._connections)
    assert not meters.read({})
    assert not meters._unread


def http(body, status="200 OK", more=""):
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@contextlib.asynccontextmanager
async def scripted(*answers, host="127.0.0.1", port=None):
    """Listen; the n-th connection gets the n-th answer, or the last one, to each question.

    b"" closes it, None is silence. Yields the port and the questions.
    """
    questions, opened = [], []

    async def serve(reader, writer):
        answer = answers[min(len(opened), len(answers) - 1)]
        opened.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                questions.append(await reader.readuntil(b"\r\n\r\n"))
                if answer:
                    writer.write(answer)
                elif answer is not None:
                    break
        writer.close()

    server = await asyncio.start_server(serve, host, port)
    async with server:
        yield server.sockets[0].getsockname()[1], questions, opened
        for writer in opened:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def metering(port):
    meters = ServerMeters(port=port, period=0.05)
    yield meters
    connections = list(meters._connections.values())
    await meters.close()
    assert all(one._transport is None or one._lost.is_set() for one in connections)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"*1 no HTTP\r\n\r\n", "an answer that is no HTTP"),
        (http(MOST_BYTES * " "), f"an answer of more than {MOST_BYTES} bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + MOST_BYTES * b"x", f"an answer of more than {MOST_BYTES}"),
        (http("", "503 Service Unavailable"), "status 503 for GET /roma/v1/cpu"),
        (b"", "connection closed"),
        (http(SOUND)[:-1], "no answer in time"),
        (None, "no answer in time"),
    ],
)
async def test_a_server_that_fails_is_told_once_and_asked_again(bad, why, caplog):
    pods = {"a@w": parse(pod("a"), "model-server")}
    async with (
        scripted(bad, bad, http(SOUND)) as (port, _, opened),
        metering(port) as meters,
    ):
        if bad and b"503" in bad:  # on a connection that is kept
            await until(lambda: not meters.read(pods)["a@w"] and caplog.records)
            opened[0].transport.abort()
            await until(lambda: not meters.read(pods)["a@w"] and len(opened) > 1)
            opened[1].transport.abort()
        await until(lambda: meters.read(pods)["a@w"] is not None)
    told = [record.getMessage() for record in caplog.records if why in record.getMessage()]
    assert told[0].startswith(f"executable a@w: its CPU use is unknown: {why}")
    assert bad == http("", "503 Service Unavailable") or len(told) == len(caplog.records) == 1


async def test_a_connection_is_kept_for_as_long_as_its_server_keeps_it():
    pods = {"a@w": parse(pod("a"), "model-server")}
    async with (
        scripted(http(SOUND, more="Connection: close\r\n"), http(SOUND)) as (port, asked, opened),
        metering(port) as meters,
    ):
        for _ in range(4):
            await until(lambda: meters.read(pods)["a@w"] is not None)
        assert asked[0] == f"GET {CPU_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        assert len(opened) == 2


async def test_bytes_that_nobody_asked_for_end_a_connection(caplog):
    pods = {"a@w": parse(pod("a"), "model-server")}
    async with (
        scripted(http(SOUND) + http(SOUND.replace("3", "4")), http(SOUND)) as (port, _, opened),
        metering(port) as meters,
    ):
        usages = []

        def reads():
            reading = meters.read(pods)["a@w"]
            usages.extend([] if reading is None else [reading.usage])
            return len(usages) == 3

        await until(reads)
        opened[0].write(b"HTTP/1.1 200 OK\r\n")
        await until(lambda: len(opened) == 2)
        await until(lambda: meters.read(pods)["a@w"] is not None)
    assert usages == [3, 3, 3]
    assert not caplog.records


async def test_a_pod_that_moves_is_asked_at_its_new_address():
    found = parse(pod("a"), "model-server")
    async with scripted(http(SOUND)) as (port, _, opened), metering(port) as meters:
        await until(lambda: meters.read({"a@w": found})["a@w"] is not None)
        other = http(SOUND.replace("3", "5"))
        async with scripted(other, host="127.0.0.2", port=port) as (_, _, moved):
            there = {"a@w": replace(found, ip="127.0.0.2")}
            await until(lambda: (r := meters.read(there)["a@w"]) is not None and r.usage == 5)
            await until(lambda: not meters.read({}) and not meters._connections)
            assert (len(opened), len(moved)) == (1, 1)


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "no address", "é\0", "." * 70])
async def test_what_cannot_be_reached_is_told_once(caplog, ip):
    (port,) = free_ports(1)
    pods = {"a@w": replace(parse(pod("a"), "model-server"), ip=ip)}
    async with metering(port) as meters:
        await until(lambda: meters.read(pods)["a@w"] is None and caplog.records)
        await asyncio.sleep(0.1)
        meters.read(pods)
    # On a busy machine an answer may also be late: that is another reason.
    assert all(one != another for one, another in itertools.pairwise(caplog.messages))
    assert caplog.messages[0].startswith("executable a@w: its CPU use is unknown: ")

"""Readings of model servers in pods: a pod may answer anything."""

import asyncio
import contextlib
import itertools
from dataclasses import replace
from unittest import mock

import pytest
from aiohttp import web

from roma.kubernetes.pods import CPU_PATH, parse
from roma.tools.demo.ports import free_ports
from supervisor.actuators import pod_meters
from supervisor.actuators.pod_connection import MOST_BYTES
from supervisor.actuators.pod_meters import ServerMeters
from tests.support.fake_api_server import pod
from tests.support.served import served
from tests.support.waiting import until

PODS = {"a@w": parse(pod("a"), "model-server")}
SOUND = '{"cores": 0.5, "usage": 3, "periods": 7, "throttled": 1}'


async def reads(meters, condition=lambda reading: reading is not None, pods=PODS):
    """Read until a reading of pod a, or the want of one, fits the condition; return it."""
    async with asyncio.timeout(60):
        while not condition(found := (meters.read(pods)).get("a@w")):
            await asyncio.sleep(0.005)
    return found


@pytest.fixture
async def answers():
    """A model server; its answers, the last of which is repeated, and the meters that ask it."""
    texts = []

    async def answer(_):
        return web.Response(text=texts.pop(0) if len(texts) > 1 else texts[0])

    async with served(web.get(CPU_PATH, answer)) as port:
        meters = ServerMeters(port=port, period=0.05)
        yield texts, meters
        await meters.close()


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
    told = "an answer to GET /roma/v1/cpu that is no reading"
    assert await reads(meters, lambda found: found or told in caplog.text) is None
    texts[:] = [SOUND]
    found = await reads(meters)
    assert (found.cores, found.usage) == (0.5, 3.0)


async def test_nothing_is_kept_of_a_pod_that_went_while_it_could_not_be_read(answers):
    texts, meters = answers
    texts.append("{}")
    await reads(meters, lambda found: not found and meters._unread)
    await reads(meters, lambda _: not meters._connections, {})
    assert meters.read({}) == {}
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
async def metering(port, patience=100.0):
    """Meters that await an answer for so many periods: on a busy machine all may be late."""
    meters = ServerMeters(port=port, period=0.5)
    with mock.patch.object(pod_meters, "PATIENCE", patience):
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
    async with (
        scripted(bad, bad, http(SOUND)) as (port, _, opened),
        metering(port, 0.9 if "time" in why else 100.0) as meters,
    ):
        if bad and b"503" in bad:  # on a connection that is kept
            await reads(meters, lambda found: not found and caplog.records)
            opened[0].transport.abort()
            await reads(meters, lambda found: not found and len(opened) > 1)
            opened[1].transport.abort()
        await reads(meters)
    told = [record.getMessage() for record in caplog.records if why in record.getMessage()]
    assert told[0].startswith(f"executable a@w: its CPU use is unknown: {why}")
    assert bad == http("", "503 Service Unavailable") or len(told) == len(caplog.records) == 1


async def test_a_connection_is_kept_for_as_long_as_its_server_keeps_it():
    async with (
        scripted(http(SOUND, more="Connection: close\r\n"), http(SOUND)) as (port, asked, opened),
        metering(port) as meters,
    ):
        for _ in range(4):
            await reads(meters)
        assert asked[0] == f"GET {CPU_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        assert len(opened) == 2


async def test_bytes_that_nobody_asked_for_end_a_connection(caplog):
    async with (
        scripted(http(SOUND) + http(SOUND.replace("3", "4")), http(SOUND)) as (port, _, opened),
        metering(port) as meters,
    ):
        usages = [(await reads(meters)).usage for _ in range(3)]
        opened[0].write(b"HTTP/1.1 200 OK\r\n")
        await until(lambda: meters._connections["a@w"].is_closed)
        await reads(meters)
    assert len(opened) == 2
    assert usages == [3, 3, 3]
    # A question may be on its way at that moment: then they are its answer.
    assert all("no HTTP" in message for message in caplog.messages)


async def test_a_pod_that_moves_is_asked_at_its_new_address():
    async with scripted(http(SOUND)) as (port, _, opened), metering(port) as meters:
        await reads(meters)
        other = http(SOUND.replace("3", "5"))
        async with scripted(other, host="127.0.0.2", port=port) as (_, _, moved):
            there = {"a@w": replace(PODS["a@w"], ip="127.0.0.2")}
            await reads(meters, lambda found: found is not None and found.usage == 5, there)
            await reads(meters, lambda _: not meters._connections, {})
            assert (len(opened), len(moved)) == (1, 1)


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "no address", "é\0", "." * 70])
async def test_what_cannot_be_reached_is_told_once(caplog, ip):
    (port,) = free_ports(1)
    pods = {"a@w": replace(PODS["a@w"], ip=ip)}
    async with metering(port) as meters:
        await reads(meters, lambda found: found is None and caplog.records, pods)
        await asyncio.sleep(0.1)
        meters.read(pods)
    assert all(one != another for one, another in itertools.pairwise(caplog.messages))
    assert caplog.messages[0].startswith("executable a@w: its CPU use is unknown: ")

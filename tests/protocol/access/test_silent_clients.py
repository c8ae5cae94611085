"""Clients that connect and say nothing: they are counted from the first moment, and not kept."""

import asyncio
import contextlib
import ssl

import aiohttp
import pytest
from aiohttp import web

from dispatcher.live import app as dispatcher_app
from dispatcher.live.http import server as servers
from roma.config import schema as configs
from roma.config.security import TlsConfig
from roma.security import admin_ports
from roma.security.admin_ports import AdminPorts
from roma.security.tls import client_context, server_context
from roma.tools.demo.ports import free_ports
from tests.protocol.access.test_admin_guard import written
from tests.support.waiting import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Crowd:
    """Connections that say nothing."""

    def __init__(self):
        self.writers = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for writer in self.writers:
            writer.transport.abort()

    async def join(self, port, count=1, context=None):
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            self.writers.append(writer)
        return reader, writer


async def ended(reader):
    """Wait until the other side closes, by whatever means."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()


@contextlib.asynccontextmanager
async def serving(tmp_path, authority, **limits):
    gateway = {"tls": authority.issue("here", "127.0.0.1"), "limits": limits}
    loaded = configs.load(written(tmp_path, gateway=gateway))
    async with dispatcher_app.running(loaded) as running:
        yield running.server, loaded.gateway.port


async def health(port, context):
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://127.0.0.1:{port}/healthz") as response,
    ):
        return await response.text()


async def test_a_connection_counts_before_its_handshake(tmp_path, authority, caplog, monkeypatch):
    monkeypatch.setattr(servers, "CROWDED", 60.0)
    trusted = client_context(authority.file)
    async with serving(tmp_path, authority, connections=3) as (server, port), Crowd() as crowd:
        await crowd.join(port, 3)
        await until(lambda: server.open == 3)
        assert not server.connections
        reader, _ = await crowd.join(port)  # refused: those before have just come
        await ended(reader)
        assert (server.open, server.turned_away) == (3, 1)
        assert "gateway.limits.connections = 3 is reached" in caplog.text
        crowd.writers[0].transport.abort()
        await until(lambda: server.open == 2)
        assert await health(port, trusted) == "ok"
    assert server.open == 0


async def test_a_silent_handshake_makes_room_for_the_next_client(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(servers, "CROWDED", -1.0)
    async with serving(tmp_path, authority, connections=2) as (server, port), Crowd() as crowd:
        first, _ = await crowd.join(port)
        await crowd.join(port)
        await until(lambda: server.open == 2)
        assert await health(port, client_context(authority.file)) == "ok"
        await ended(first)
        assert server.turned_away == 0


async def test_connections_of_one_address_are_bounded_before_their_handshakes(tmp_path, authority):
    limits = {"connections_per_address": 2}
    async with serving(tmp_path, authority, **limits) as (server, port), Crowd() as crowd:
        await crowd.join(port, 2)
        await until(lambda: server.open == 2)
        reader, _ = await crowd.join(port)
        await ended(reader)
        assert (server.open, server.turned_away) == (2, 1)


async def test_a_handshake_has_the_time_of_a_head(tmp_path, authority):
    async with serving(tmp_path, authority, head_timeout=0.1) as (server, port), Crowd() as crowd:
        reader, _ = await crowd.join(port)
        await ended(reader)
        await until(lambda: server.open == 0)
        assert server.handshakes_failed == 1


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b""])
async def test_whatever_ends_a_handshake_frees_its_place(tmp_path, authority, nonsense):
    async with serving(tmp_path, authority) as (server, port), Crowd() as crowd:
        for _ in range(5):
            reader, writer = await crowd.join(port)
            writer.write(nonsense)
            writer.write_eof()
            await ended(reader)
        await until(lambda: server.handshakes_failed == 5)
        assert (server.open, server._by_address) == (0, {})


async def test_what_comes_right_behind_the_handshake_is_read(tmp_path, authority):
    """TLS 1.3: the client's last words of the handshake and its first request are one packet."""
    trusted = client_context(authority.file)
    async with serving(tmp_path, authority) as (server, port), Crowd() as crowd:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusted.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, writer = await crowd.join(port)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        tls.write(HEALTH)
        writer.write(outgoing.read())
        answer = b""
        while not answer.endswith(b"ok"):
            incoming.write(await reader.read(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    answer += tls.read(65536)
        assert answer.startswith(b"HTTP/1.1 200")


# The admin ports


@contextlib.asynccontextmanager
async def admin(most, context=None, **routes):
    """A listener as the admin port is, of `most` connections."""
    ports = AdminPorts()
    ports.most = most

    async def healthz(_):
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    for name, handler in routes.items():
        app.router.add_get(f"/{name}", handler)
    (port,) = free_ports(1)
    async with ports.listening(
        app, ("127.0.0.1", port), "gateway.admin_port", context, shutdown_timeout=0.1
    ):
        yield ports, port
    ports.close()


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_probe_is_answered_while_a_crowd_holds_the_admin_port(authority, caplog, with_tls):
    tls = TlsConfig(**authority.issue("here", "127.0.0.1"))
    context = server_context(tls) if with_tls else None
    trusted = client_context(authority.file) if with_tls else None
    async with admin(4, context) as (ports, port), Crowd() as crowd:
        await crowd.join(port, 20)
        await until(lambda: ports.closed == 16)
        for _ in range(3):
            reader, writer = await crowd.join(port, context=trusted)
            writer.write(HEALTH)
            async with asyncio.timeout(20):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            assert len(ports.open) == 4
    assert "4 connections of admin ports are open: limit reached" in caplog.text


async def test_who_is_being_answered_makes_no_room():
    begun, free = asyncio.Event(), asyncio.Event()

    async def slow(_):
        begun.set()
        await free.wait()
        return web.Response(text="done")

    async with admin(2, slow=slow) as (ports, port), Crowd() as crowd:
        busy, writer = await crowd.join(port)
        writer.write(HEALTH.replace(b"healthz", b"slow"))
        await begun.wait()
        await crowd.join(port, 5)
        await until(lambda: ports.closed == 4)
        free.set()
        async with asyncio.timeout(20):
            assert await busy.readuntil(b"done")
        assert len(ports.open) == 2


async def test_idle_and_silent_connections_of_the_admin_port_end(monkeypatch):
    monkeypatch.setattr(admin_ports, "HEAD_TIMEOUT", 0.1)
    monkeypatch.setattr(admin_ports, "IDLE_TIMEOUT", 0.1)
    monkeypatch.setattr(admin_ports, "SWEEP", 0.02)
    async with admin(100) as (ports, port), Crowd() as crowd:
        silent, _ = await crowd.join(port)
        half, writer = await crowd.join(port)
        writer.write(HEALTH[:-2])
        said, idle, attempts = b"", None, 0
        async with asyncio.timeout(60):
            while not said:  # a busy machine may need longer than a silent one has
                idle, writer = await crowd.join(port)
                attempts += 1
                writer.write(HEALTH)
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    said = await idle.readuntil(b"ok")
        for reader in (silent, half, idle):
            await ended(reader)
        await until(lambda: not ports.open)
        assert ports.closed == 2 + attempts


async def test_who_does_not_read_an_answer_of_the_admin_port_is_closed(monkeypatch):
    monkeypatch.setattr(admin_ports, "WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(admin_ports, "SWEEP", 0.02)

    async def large(_):
        return web.Response(body=bytes(2**24))

    async with admin(100, large=large) as (ports, port), Crowd() as crowd:
        _, writer = await crowd.join(port)
        writer.transport.pause_reading()
        writer.write(HEALTH.replace(b"healthz", b"large"))
        await until(lambda: ports.closed == 1)
        await until(lambda: not ports.open)

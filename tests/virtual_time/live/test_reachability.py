"""Why nobody answered, in words for an operator."""

import socket
import ssl

import aiohttp
import pytest
from aiohttp import web

from roma.domain.errors import ExchangeError
from roma.domain.exchange import ExchangeRequest
from roma.telemetry.reachability import reason
from supervisor.live.peer import Peer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (FileNotFoundError(2, "No such file or directory"), "no such file or directory"),
        (OSError(98, "error while attempting to bind on ('::1', 1)"), "address already in use"),
        (TimeoutError(), "no answer in time"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions: two"), "Multiple exceptions: two"),
        (ValueError("no number"), "no number"),
        (EOFError(), "EOFError"),
    ],
)
def test_a_reason_has_no_addresses_and_no_names_of_classes(error, words):
    assert words in reason(error)
    assert not any(odd in reason(error) for odd in ("Connect call", "attempting", "Errno"))


async def test_another_program_where_a_dispatcher_should_be_is_named(unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"

    async def answer(request):
        return web.Response(text="<html>", status=200 if request.method == "GET" else 409)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    async with aiohttp.ClientSession() as session:
        peer = Peer(session, url, 5)
        for call, path in (
            (peer.report("local"), "report"),
            (peer.confirm(ExchangeRequest("w", ())), "applied"),
        ):
            with pytest.raises(ExchangeError) as found:
                await call
            said = f"{url}/control/v1/{path}: no answer of a dispatcher of this version: body: Invalid JSON: "
            assert str(found.value).startswith(said)
    await runner.cleanup()


async def test_a_dispatcher_that_starts_is_not_reachable_yet(unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    report = f"{url}/control/v1/report"
    async with aiohttp.ClientSession() as session:
        peer = Peer(session, url, 5)
        with pytest.raises(ExchangeError) as found:
            await peer.report("local")
        assert str(found.value) == f"{report}: not reachable yet: connection refused"

        async def answer(_):
            return web.json_response({"epoch": "e", "models": [], "executors": []})

        app = web.Application()
        app.router.add_get("/control/v1/report", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
        await peer.report("local")
        await runner.cleanup()
        with pytest.raises(ExchangeError, match=f"^{report}: not reachable: "):
            await peer.report("local")

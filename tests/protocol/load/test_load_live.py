"""The generator against a real HTTP server on loopback that behaves by rule."""

import asyncio
import json
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from roma.security.tls import client_context
from roma.tools.load.client import RestClient, allow_connections
from roma.tools.load.errors import LoadInputError, NoAnswerError
from roma.tools.load.generator import LoadRun, Stream, run_load
from roma.tools.load.outcomes import RequestEnd, RequestResult
from tests.support.served import served

EXPECTED = 200


class Behaviour:
    """A model server whose model's name says what it does with each request."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.connections: set[int] = set()
        self.all_here = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        rule = request.match_info["model"]
        self.seen[rule] += 1
        self.paths.add(request.raw_path)
        self.connections.add(id(request.transport))
        body = await request.read()
        if rule.isdigit():
            # The Location matters to a 302 alone: following it would end otherwise.
            return web.Response(status=int(rule), body=body, headers={"Location": "200"})
        if rule == "close":
            assert request.transport is not None
            request.transport.close()
        elif rule == "hang":
            await asyncio.Event().wait()
        elif rule == "truncate":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"{")
            assert request.transport is not None
            request.transport.close()
            return response
        elif rule == "barrier":
            if self.seen[rule] == EXPECTED:
                self.all_here.set()
            await self.all_here.wait()
        self.bodies.append(body)
        return web.Response(body=body)


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
async def url(behaviour: Behaviour) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/models/{model}:predict", behaviour.handle)
    server = TestServer(app)
    # It cancels a handler whose client goes away, so that it can close after `hang`.
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


def stream(model: str, requests: int) -> Stream:
    times = [index / 1000 for index in range(requests)]
    return Stream(model, times, lambda index: f'{{"n": {index}}}'.encode())


async def test_each_request_has_one_end_and_the_counts_are_exact(
    url: str, behaviour: Behaviour
) -> None:
    rules = ["200", "201", "302", "400", "404", "429", "500", "502", "503", "504", "close"]
    plan = [stream(rule, 20) for rule in (*rules, "truncate")]
    results: list[RequestResult] = []
    report = await run_load(plan, url, on_result=results.append)
    outcomes = {
        model.model: {o.value for o in RequestEnd if getattr(model, o.value) == 20}
        for model in report.models
    }
    assert outcomes == {
        "200": {"answered"},
        "201": {"answered"},
        "302": {"failed"},
        "400": {"invalid"},
        "404": {"invalid"},
        "429": {"rejected"},
        "500": {"failed"},
        "502": {"failed"},
        "503": {"rejected"},
        "504": {"rejected"},
        "close": {"failed"},
        "truncate": {"failed"},
    }
    assert report.total.reasons == {"disconnected": 40}
    assert len(results) == report.total.sent == report.planned == 240
    assert report.total.lost == 0
    # Once each: a request that the server cut off is never sent again.
    assert set(behaviour.seen.values()) == {20}


async def test_open_loop_the_last_send_does_not_need_the_first_answer(url: str) -> None:
    # No request is answered before all have arrived: a generator that waits would never end.
    report = await run_load([stream("barrier", EXPECTED)], url, timeout=60)
    assert report.total.answered == EXPECTED
    assert report.total.lost == 0


async def test_a_hanging_service_times_out(url: str) -> None:
    report = await run_load([stream("hang", 30)], url, timeout=0.1)
    assert (report.total.failed, report.total.reasons) == (30, {"timeout": 30})


async def test_a_refused_connection_is_a_failure_to_connect() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = reserved.getsockname()[1]
        report = await run_load([stream("m", 5)], f"http://127.0.0.1:{port}")
    assert (report.total.failed, report.total.reasons) == (5, {"connect": 5})


async def test_what_is_not_http_is_a_protocol_failure() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        report = await run_load([stream("m", 3)], f"http://127.0.0.1:{port}")
    assert (report.total.failed, report.total.reasons) == (3, {"protocol": 3})


async def test_stop_leaves_a_consistent_report(url: str, behaviour: Behaviour) -> None:
    loads: list[LoadRun] = []
    answered: list[int] = []  # answers may overtake each other

    def after_ten(result: RequestResult) -> None:
        if result.model == "200":
            answered.append(result.index)
            if len(answered) == 10:
                loads[0].stop()

    hanging = Stream("hang", [0.0] * 5, [b"{}"])
    endless = Stream("200", [0.01 * n for n in range(100_000)], [b"{}"])
    report = await run_load([hanging, endless], url, on_result=after_ten, on_start=loads.append)
    assert report.models[0].reasons == {"cancelled": 5}
    assert report.models[1].answered >= 10
    assert report.total.sent < report.planned
    assert report.total.lost == 0


async def test_bodies_go_out_untouched_on_one_kept_connection(
    url: str, behaviour: Behaviour
) -> None:
    bodies = [b'{"instances":  [%d]}' % n for n in range(5)]
    async with RestClient(url) as client:
        answers = [await client.predict("echo", body) for body in bodies]
    assert behaviour.bodies == bodies
    assert [(answer.status, answer.body) for answer in answers] == [(200, b) for b in bodies]
    assert len(behaviour.connections) == 1


async def test_a_unix_socket_is_a_url_too() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"host": request.headers["Host"], "path": request.path})

    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        url = f"unix://{directory}/m.sock"
        async with RestClient(url) as client:
            with pytest.raises(NoAnswerError) as caught:
                await client.predict("m", b"{}")
            assert caught.value.reason == "connect"
            everything = web.route("*", "/{path:.*}", answer)
            async with served(everything, path=f"{directory}/m.sock"):
                answered = await client.predict("m", b"{}")
    assert json.loads(answered.body) == {"host": "localhost", "path": "/v1/models/m:predict"}


async def test_a_certificate_counts_if_its_authority_is_named(behaviour, tmp_path) -> None:
    authority, own = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    app = web.Application()
    app.router.add_post("/v1/models/{model}:predict", behaviour.handle)
    plan = [stream("200", 3)]
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=own)
    async with server:
        url, tls = f"https://127.0.0.1:{server.port}", client_context(tmp_path / "ca.crt")
        trusted = (await run_load(plan, url, tls=tls)).total
        unknown = (await run_load(plan, url)).total
    assert (trusted.answered, unknown.answered) == (3, 0)
    assert (unknown.failed, unknown.reasons) == (3, {"connect": 3})


async def test_a_models_name_is_quoted(url: str, behaviour: Behaviour) -> None:
    async with RestClient(url + "/") as client:
        assert (await client.predict("a b/c", b"{}")).status == 200
    assert behaviour.paths == {"/v1/models/a%20b%2Fc:predict"}


@pytest.mark.parametrize("bad", ["localhost:8501", "ftp://localhost", "http://", "unix://x", ""])
def test_a_url_that_is_not_http_is_refused(bad: str) -> None:
    with pytest.raises(LoadInputError, match="must be http"):
        RestClient(bad)


def test_the_limit_of_open_files_is_never_lowered() -> None:
    now = allow_connections(1)
    assert allow_connections(2) >= now

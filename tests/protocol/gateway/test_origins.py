"""Names and web pages that the clients' port is for: other ones are refused, or not told answers."""

import json

import pytest

from dispatcher.live.app import _origins
from dispatcher.live.http.origins import FOREIGN, MALFORMED, OK, Origins
from roma.config.gateway import GatewayConfig
from roma.config.schema import parse
from roma.config.security import TlsConfig
from tests.support.keys import keys_file
from tests.support.raw_http import HEAD

PAGE = "https://app.example"


async def post(harness, host, **headers):
    headers = {k.replace("_", "-"): v for k, v in headers.items()}
    return await harness.predict(headers={"Host": host, **headers})


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:8501", 200),
        ("demo.localhost:8501", 200),
        ("127.0.0.1:1", 200),
        ("192.0.2.7", 200),
        ("[::1]:8501", 200),
        ("evil.example", 421),
        ("evil.example:8501", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil.example,localhost", 400),
        ("localhost evil.example", 400),
        ("localhost@evil.example", 400),
    ],
)
async def test_a_name_that_nobody_gave_us_is_refused_on_a_port_of_this_machine(
    harness, host, status
):
    await harness.open(names="[]")
    for _ in range(3):  # whether the head is known or not
        found, body, _ = await post(harness, host)
        assert found == status
    if status == 421:
        bound = "must be an address, localhost or one of gateway.names"
        assert json.loads(body)["error"] == f"Host: {host}: {bound}"
        assert (
            await harness.session.get(harness.url + "/healthz", headers={"Host": host})
        ).status == 200
        assert harness.backends[0].seen == []


async def test_names_of_the_file_are_ours(harness):
    await harness.open(names="[roma.example]")
    assert [(await post(harness, host))[0] for host in ("ROMA.example:80", "x")] == [200, 421]


def test_the_port_is_guarded_where_nothing_else_says_who_may_call(tmp_path):
    def foreign(**fields):
        return _origins(GatewayConfig(**fields)).host(b"evil.example") == FOREIGN

    tls = TlsConfig(certificate=tmp_path / "c", key=tmp_path / "k")
    assert foreign()
    assert foreign(host="localhost")
    assert not foreign(host="0.0.0.0", insecure=True)
    assert not foreign(keys=tmp_path / "keys.yaml")
    assert not foreign(tls=tls)
    assert foreign(keys=tmp_path / "keys.yaml", names=("roma.example",))
    assert not _origins(GatewayConfig(host="roma.example", names=("a",))).host(b"roma.example")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("http://192.0.2.7", 403),
        ("null", 403),
        ("file://", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:8888", 200),
        ("http://[::1]", 200),
        ("http://x", 200),
    ],
)
async def test_a_page_of_another_site_is_refused(harness, origin, status):
    await harness.open()
    found, _, headers = await post(harness, "localhost", Origin=origin, Content_Type="text/plain")
    assert found == status
    assert "Access-Control-Allow-Origin" not in headers
    assert len(harness.backends[0].seen) == (status == 200)


async def test_pages_that_may_read_answers_are_told_so_in_each(harness):
    await harness.open(gateway=f"cors_origins: ['{PAGE}']")
    for _ in range(3):
        for origin, path, status in (
            (PAGE, "/v1/models/m:predict", 200),
            (PAGE, "/v1/models/unknown:predict", 404),
            ("http://localhost", "/v1/models/m:predict", 200),
            (None, "/v1/models/m:predict", 200),
        ):
            sent = {} if origin is None else {"Origin": origin}
            found, _, headers = await harness.predict(path=path, headers=sent)
            assert found == status
            allowed = headers.get("Access-Control-Allow-Origin")
            assert allowed == (PAGE if origin == PAGE else None)
            assert headers.get("Vary") == ("Origin" if origin == PAGE else None)
    assert (await post(harness, "localhost", Origin="https://evil.example"))[0] == 403


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Content-Length: 5000", 413),
        (b"Expect: nothing", 417),
        (b"Transfer-Encoding: gzip, chunked", 501),
        (b"X: " + 2000 * b"x", 431),
    ],
)
async def test_pages_that_may_read_answers_read_why_a_head_is_refused(
    harness, connect, more, status
):
    cors = f"cors_origins: ['{PAGE}']"
    await harness.open(gateway=cors, max_body=2000, limits="{head_bytes: 1024}")
    client = await connect()
    client.send(HEAD + f"Origin: {PAGE}\r\n".encode() + more + b"\r\n\r\n")
    found, headers, _ = await client.answer()
    assert (found, headers.get("access-control-allow-origin")) == (status, PAGE)


async def test_pages_may_read_every_header_that_the_document_names(harness):
    await harness.open(gateway=f"cors_origins: ['{PAGE}']")
    _, body = await harness.get("/openapi.json")
    document = json.loads(body)
    operations = [part for path in document["paths"].values() for part in path.values()]
    answers = list(document["components"]["responses"].values())
    for operation in operations:
        if "responses" in operation:  # the others are lists of parameters
            answers += operation["responses"].values()
    named = {name for answer in answers for name in answer.get("headers", ())}
    _, _, headers = await post(harness, "localhost", Origin=PAGE)
    assert set(headers["Access-Control-Expose-Headers"].split(", ")) == named


async def preflight(harness, origin):
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    url = harness.url + "/v1/models/m:predict"
    async with harness.session.options(url, headers=headers) as response:
        return response.status, response.headers


async def test_a_browser_that_asks_first_is_answered_without_a_key(harness, tmp_path):
    await harness.open(gateway=f"keys: {keys_file(tmp_path, {})}, cors_origins: ['{PAGE}']")
    for _ in range(2):
        status, headers = await preflight(harness, PAGE)
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, PAGE)
        assert headers["Access-Control-Allow-Methods"] == "GET, POST"
        assert "X-API-Key" in headers["Access-Control-Allow-Headers"]
    assert (await preflight(harness, "https://evil.example"))[0] == 403
    status, _, headers = await post(harness, "x", Origin=PAGE)
    assert (status, headers["Access-Control-Allow-Origin"]) == (401, PAGE)


async def test_every_page_may_where_the_file_says_so(harness):
    await harness.open(gateway="cors_origins: ['*']")
    status, headers = await preflight(harness, "null")
    assert (status, headers["Access-Control-Allow-Origin"]) == (204, "*")


async def test_without_a_guard_pages_are_served_and_told_nothing(harness, tmp_path):
    await harness.open(names="[]", gateway=f"keys: {keys_file(tmp_path, {})}")
    status, headers = await preflight(harness, PAGE)
    assert status == 401
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("listed", "sent"),
    [
        ("https://App.example:443", b"https://app.example"),
        ("http://app.example:80", b"http://app.example"),
        ("http://app.example:443", b"http://app.example:443"),
        ("http://[2001:DB8::1]:3000", b"http://[2001:db8::1]:3000"),
    ],
)
def test_an_origin_is_the_same_however_it_is_written(listed, sent):
    gateway = GatewayConfig(cors_origins=(listed,))
    assert b"Allow-Origin: " + sent + b"\r\n" in _origins(gateway).cors(sent)


def test_what_clients_name_is_remembered_within_bounds():
    origins = Origins(is_guarded=True)
    for i in range(3000):
        assert origins.host(b"evil%d.example" % i) == FOREIGN
        assert origins.cors(b"https://evil%d.example" % i) is None
    assert origins._known_host.cache_info().currsize <= 1024
    assert origins._known_lines.cache_info().currsize <= 1024
    asked = origins._known_host.cache_info().misses
    assert origins.host(b"x" * 10_000) == FOREIGN
    assert origins._known_host.cache_info().misses == asked
    assert (origins.host(b""), origins.host(b"[::1"), Origins().host(b"any")) == (OK, MALFORMED, OK)


@pytest.mark.parametrize(
    "origin", ["https://app.example/", "app.example", "ftp://a", "https://a b"]
)
def test_an_origin_that_no_browser_sends_is_named(origin):
    text = f"models: {{m: {{}}}}\nworkers: []\ngateway: {{cors_origins: ['{origin}']}}"
    with pytest.raises(Exception, match=r"gateway.cors_origins"):
        parse(text)

"""Who may call, through the gateway: keys, what they may, and that nothing of it is lost or kept."""

import asyncio
import json
import socket
import ssl

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from yarl import URL

from dispatcher.live import app
from roma.security import api_keys
from tests.support.keys import keys_file
from tests.support.raw_http import HEAD, Client, post

IDS = ("aaaaaaaa", "bbbbbbbb", "cccccccc")
TOKENS = dict(zip(("one", "narrow", "batch"), map(api_keys.new_token, IDS), strict=True))
POST = HEAD.replace(b"\r\n\r\n", b"\r\n")


@pytest.fixture
async def guarded(harness, tmp_path):
    """A gateway with three callers: one at a time, one for another model, one that can wait."""
    one, narrow, batch = TOKENS.values()
    callers = {
        one: {"concurrency": 1},
        narrow: {"models": ["elsewhere"]},
        batch: {"priority": "low"},
    }
    file = keys_file(tmp_path, callers)
    await harness.open(gateway=f"keys: {file}", max_body=2000, limits="{body_timeout: 0.2}")
    return harness


def bearer(name):
    return {"Authorization": f"Bearer {TOKENS[name]}"}


async def test_who_shows_no_key_is_told_how_and_only_health_is_open(guarded):
    for path in ("/v1/models/m:predict", "/v1/models/x:predict", "/v2/models/m/infer"):
        status, body, headers = await guarded.predict(path=path)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="roma"')
        assert json.loads(body)["error"]
    for path in ("/v1/models/m", "/v1/models/m/metadata", "/v2", "/elsewhere"):
        assert (await guarded.get(path))[0] == 401
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/healthz?from=lb"):
        assert (await guarded.get(path))[0] == 200
    assert guarded.backends[0].seen == []


async def test_nothing_is_kept_for_who_shows_no_key(guarded):
    for path in (b"POST /healthz", b"GET /v2/health/live"):
        client = Client(*await asyncio.open_connection("127.0.0.1", guarded.port))
        client.send(path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n" + bytes(400))
        assert (await client.answer())[0] == 413
        assert guarded.server.buffered == 0
        client.writer.transport.abort()
    client = Client(*await asyncio.open_connection("127.0.0.1", guarded.port))
    client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert (await client.answer())[0] == 200
    client.writer.transport.abort()


async def test_a_key_for_another_model_learns_nothing_about_this_one(guarded):
    answers = [
        await guarded.predict(path=f"/v1/models/{model}:predict", headers=bearer("narrow"))
        for model in ("m", "x")
    ]
    assert [status for status, _, _ in answers] == [403, 403]
    texts = {body.replace(b" m", b" ?").replace(b" x", b" ?") for _, body, _ in answers}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/m/labels/..%2f..%2felsewhere:predict",
        "/v1/models/m/labels/%2e%2e:predict",
        "/v1/models/m/labels/..:predict",
        "/v1/models/m%2f..%2felsewhere:predict",
        "/v1/models/..:predict",
        "/v1/models/m/versions/1%2f..:predict",
        "/v2/models/m/versions/..%2f..%2felsewhere/infer",
        "/v2/models/m/versions/%2e%2e/infer",
        "/v2/models/m\\..\\elsewhere/infer",
    ],
)
async def test_no_path_leads_out_of_the_model_that_a_key_may_call(guarded, path):
    """Model servers, and proxies before them, may take an escape for what it stands for."""
    url = URL(guarded.url + path, encoded=True)
    async with guarded.session.post(url, data=b"{}", headers=bearer("one")) as response:
        assert response.status in (400, 404)
    assert guarded.backends[0].seen == []


async def test_a_key_in_either_header_lets_in(guarded):
    assert (await guarded.predict(headers=bearer("one")))[0] == 200
    assert (await guarded.predict(headers={"X-API-Key": TOKENS["one"]}))[0] == 200
    _, headers, _ = guarded.backends[0].seen[0]
    assert not {"Authorization", "X-Api-Key"} & set(headers)  # no model server learns it


async def test_who_asks_too_often_keeps_the_connection(harness, connect, tmp_path):
    """Refusing must stay cheap: over TLS, another handshake would cost more than an answer."""
    file = keys_file(tmp_path, {TOKENS["one"]: {"rate": 1e-6, "burst": 2}})
    await harness.open(gateway=f"keys: {file}")
    client = await connect()
    for status in (200, 200, 429, 429):
        client.send(post(b"{}", b"X-API-Key: " + TOKENS["one"].encode()))
        found, headers, _ = await client.answer()
        assert (found, "connection" in headers) == (status, False)


async def end_in_an_answer(harness, client, key):
    client.send(POST + key + b"Content-Length: 2\r\n\r\n{}")
    assert (await client.answer())[0] == 200


async def end_too_large(harness, client, key):
    client.send(POST + key + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n" + b"x" * 4095)
    assert (await client.answer())[0] == 413


async def end_too_slow(harness, client, key):
    client.send(POST + key + b"Content-Length: 2\r\n\r\n{")
    assert (await client.answer())[0] == 408


async def end_half_sent(harness, client, key):
    client.send(POST + key + b"Content-Length: 2\r\n\r\n{")
    await harness.until(lambda: harness.server.buffered)
    client.writer.transport.abort()
    await harness.until(lambda: not harness.server.connections)


async def end_malformed(harness, client, key):
    client.send(POST + key + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}oops\r\n")
    assert (await client.answer())[0] == 400


async def end_in_flight(harness, client, key):
    harness.backends[0].gate = asyncio.Event()
    client.send(POST + key + b"Content-Length: 2\r\n\r\n{}")
    await harness.until(lambda: harness.backends[0].running)
    client.writer.transport.abort()
    await harness.until(lambda: harness.queue.cancelled)
    harness.backends[0].gate.set()
    harness.backends[0].gate = None


async def end_no_such_model(harness, client, key):
    client.send(POST.replace(b"/m:", b"/nobody:") + key + b"Content-Length: 2\r\n\r\n{}")
    assert (await client.answer())[0] == 404


async def end_bad_deadline(harness, client, key):
    client.send(POST + key + b"X-Request-Timeout-Ms: x\r\nContent-Length: 2\r\n\r\n{}")
    assert (await client.answer())[0] == 400


@pytest.mark.parametrize(
    "end",
    [
        end_in_an_answer,
        end_too_large,
        end_too_slow,
        end_half_sent,
        end_malformed,
        end_in_flight,
        end_no_such_model,
        end_bad_deadline,
    ],
)
async def test_however_a_request_ends_its_place_is_given_back(guarded, end):
    key = f"Authorization: Bearer {TOKENS['one']}\r\n".encode()
    client = Client(*await asyncio.open_connection("127.0.0.1", guarded.port))
    try:
        await end(guarded, client, key)
        # One at a time: had it been kept, this would be 429.
        assert (await guarded.predict(headers=bearer("one")))[0] == 200
        assert guarded.server.buffered == 0
    finally:
        client.writer.transport.abort()


@pytest.mark.parametrize("reads", [True, False])
async def test_what_waits_behind_an_unread_answer_gives_its_place_back(guarded, reads):
    harness = guarded
    harness.bound(1 << 24, body_timeout=60.0)
    key = f"Authorization: Bearer {TOKENS['one']}\r\n".encode()
    client = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
    client.writer.transport.pause_reading()
    size = 1 << 23
    client.send(POST + key + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
    await harness.until(lambda: any(c.output.unsent for c in harness.server.connections))
    client.send(POST + key + b"Content-Length: 2\r\n\r\n{}")
    await asyncio.sleep(0.1)
    if reads:
        client.writer.transport.resume_reading()
        assert [(await client.answer())[0] for _ in range(2)] == [200, 200]
    client.writer.transport.abort()
    await harness.until(lambda: not harness.server.connections)
    assert (await harness.predict(headers=bearer("one")))[0] == 200
    assert harness.server.buffered == 0


async def test_a_batch_key_uses_slack_whatever_its_caller_says(guarded):
    headers = {**bearer("batch"), "X-Request-Priority": "interactive"}
    assert (await guarded.predict(headers=headers))[0] == 200
    assert guarded.core.low_priority["m"].completed.total() == 1
    assert guarded.queue.arrivals == 0


async def test_anybody_can_let_the_others_go_first(guarded):
    headers = {**bearer("one"), "X-Request-Priority": "low"}
    assert (await guarded.predict(headers=headers))[0] == 200
    assert guarded.core.low_priority["m"].completed.total() == 1
    headers["X-Request-Priority"] = "urgent"
    status, body, _ = await guarded.predict(headers=headers)
    fault = "X-Request-Priority: urgent: must be interactive or low"
    assert (status, json.loads(body)["error"]) == (400, fault)


async def test_what_was_denied_is_counted(guarded):
    await guarded.predict()
    await guarded.predict(headers=bearer("narrow"))
    async with guarded.session.get(guarded.admin + "/metrics") as response:
        text = await response.text()
    assert 'roma_gateway_denied_requests_total{status="401"} 1.0' in text
    assert 'roma_gateway_denied_requests_total{status="403"} 1.0' in text
    assert "roma_gateway_connections " in text


@pytest.mark.parametrize(
    "headers", [{}, {"X-Request-Timeout-Ms": "50"}], ids=["hangs up", "limits"]
)
async def test_a_key_runs_no_more_at_once_by_not_waiting_for_the_answers(guarded, headers):
    backend = guarded.backends[0]
    first = await guarded.held(headers=bearer("one") | headers)
    if headers:
        assert (await first)[0] == 504  # by its own deadline: it computes on
    else:
        first.cancel()
        await guarded.until(lambda: guarded.queue.cancelled == 1)
    for _ in range(3):
        assert (await guarded.predict(headers=bearer("one")))[0] == 429
    backend.gate.set()
    await guarded.until(lambda: backend.running == 0)
    async with asyncio.timeout(20):
        while (await guarded.predict(headers=bearer("one")))[0] != 200:
            await asyncio.sleep(0.005)
    assert backend.most_running == 1
    assert (await guarded.predict(headers=bearer("one")))[0] == 200  # given back once, not twice
    held = await guarded.held(headers=bearer("one"))
    status, _, answered = await guarded.predict(headers=bearer("one"))
    assert (status, answered["Retry-After"]) == (429, "1")
    backend.gate.set()
    assert (await held)[0] == 200


@pytest.fixture
async def guarded_grpc(harness, tmp_path):
    one = {"models": ["m"], "concurrency": 1}
    file = keys_file(tmp_path, {TOKENS["one"]: one, TOKENS["narrow"]: {"models": ["elsewhere"]}})
    await harness.open(gateway=f"keys: {file}", speaks_grpc=True)
    return harness


def metadata(name, *more):
    return (("authorization", f"Bearer {TOKENS[name]}"), *more)


async def test_keys_hold_for_grpc_as_well(guarded_grpc):
    harness, code = guarded_grpc, grpc.StatusCode
    async with harness.channel as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        described = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        m, x = b"\x0a\x01m", b"\x0a\x01x"

        async def refused(call):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call
            return error.value

        assert (await refused(infer(m))).code() is code.UNAUTHENTICATED
        assert (await refused(described(b""))).code() is code.UNAUTHENTICATED
        assert await live(b"")
        for body in (m, x):
            denied = await refused(infer(body, metadata=metadata("narrow")))
            assert denied.code() is code.PERMISSION_DENIED
        assert await infer(m, metadata=metadata("one")) == m
        assert harness.grpc_backends[0].seen[0][0].endswith("ModelInfer")
        assert "authorization" not in dict(harness.grpc_backends[0].seen[0][1])

        harness.grpc_backends[0].gate = asyncio.Event()
        first = infer(m, metadata=metadata("one"))
        await harness.until(lambda: harness.grpc_backends[0].running)
        busy = await refused(infer(m, metadata=metadata("one")))
        assert (busy.code(), dict(busy.trailing_metadata())["retry-after"]) == (
            code.RESOURCE_EXHAUSTED,
            "1",
        )
        first.cancel()
        await harness.until(lambda: harness.queue.cancelled)
        harness.grpc_backends[0].gate.set()
        await harness.until(lambda: not list(harness.core.running()))
        # Its slot was given back; it may be of low priority, too, by its name until 0.2 as well.
        for number, name in enumerate(("low", "batch"), 1):
            low = metadata("one", ("x-request-priority", name))
            assert await infer(m, metadata=low) == m
            assert harness.core.low_priority["m"].completed.total() == number
        odd = metadata("one", ("x-request-priority", "urgent"))
        assert (await refused(infer(m, metadata=odd))).code() is code.INVALID_ARGUMENT


async def secured(harness, authority, **options):
    """Open a gateway with TLS; return the context of a client that trusts it."""
    await harness.open(tls=authority.issue("server", "localhost"), **options)
    return ssl.create_default_context(cafile=authority.file)


async def test_a_slow_client_over_tls_gets_its_whole_answer_while_the_gateway_ends(
    harness, authority
):
    size = 24 << 20  # more than the kernel and TLS keep for a connection
    trusting = await secured(harness, authority, max_body=size, drain=60)
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"

    def ask():  # a plain socket: asyncio's reads ahead
        plain = socket.create_connection(("127.0.0.1", harness.port), timeout=20)
        client = trusting.wrap_socket(plain, server_hostname="localhost")
        client.sendall(head.encode() + bytes(size))
        return client

    def read(client):
        answer = b""
        with client, client.makefile("rb") as file:
            while (line := file.readline()) != b"\r\n":
                answer += line
            return answer, len(file.read(size))

    client = await asyncio.to_thread(ask)
    await harness.until(lambda: harness.queue.completed.total() == 1)
    await harness.until(lambda: not harness.core.live)
    closing = asyncio.create_task(harness.running.aclose())
    await harness.until(lambda: harness.service.program.refuses)
    await asyncio.sleep(1)  # twice as long as connections have that nobody waits for
    assert not closing.done()
    answer, length = await asyncio.to_thread(read, client)
    assert answer.startswith(b"HTTP/1.1 200")
    assert length == size
    await closing


@pytest.mark.parametrize("reads", ["before", "meanwhile"])
async def test_what_tls_has_encrypted_reaches_a_client_between_two_requests(
    harness, authority, monkeypatch, reads
):
    monkeypatch.setattr(app, "LINGER", 0.05)
    size = 24 << 20
    trusting = await secured(harness, authority, max_body=size, drain=60)
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", harness.port), 20)
    client = await asyncio.to_thread(trusting.wrap_socket, plain, server_hostname="localhost")
    await asyncio.to_thread(client.sendall, head.encode() + bytes(size))
    await harness.until(lambda: any(c.output.is_unread for c in harness.server.connections))
    (connection,) = harness.server.connections
    answer = b""
    if reads == "meanwhile":
        closing = asyncio.create_task(harness.running.aclose())
        await harness.until(lambda: harness.service.program.refuses)
    while connection.output.is_unread:  # from here on its transport says that it holds nothing
        answer += await asyncio.to_thread(client.recv, 1 << 16)
    if reads == "before":
        closing = asyncio.create_task(harness.running.aclose())
    await harness.until(lambda: connection.output.is_closing)
    await asyncio.sleep(1)  # twice as long as connections have that nobody waits for
    assert not closing.done()
    while more := await asyncio.to_thread(client.recv, 1 << 20):
        answer += more
    assert len(answer.partition(b"\r\n\r\n")[2]) == size
    client.close()
    await closing


def issued(authority, *names):
    """Return the key and the certificate of a client, in PEM; trustme knows no URIs."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    certificate = (
        x509.CertificateBuilder(issuer.subject, x509.Name([]), key.public_key(), 1)
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(load_pem_private_key(authority.private_key_pem.bytes(), None), hashes.SHA256())
    )
    unlocked = PrivateFormat.PKCS8, NoEncryption()
    return key.private_bytes(Encoding.PEM, *unlocked), certificate.public_bytes(Encoding.PEM)


async def test_grpc_over_mutual_tls_knows_its_client_by_its_certificate(
    harness, authority, tmp_path
):
    names = x509.DNSName("a.example"), x509.UniformResourceIdentifier("urn:scorer")
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {scorer: {certificate: 'urn:scorer', models: [m]}}")
    tls = authority.issue("server", "localhost") | {"client_ca": str(authority.file)}
    await harness.open(gateway=f"keys: {keys}", tls=tls, speaks_grpc=True)
    trust = authority.file.read_bytes()
    own = issued(authority.ca, *names)
    target = f"localhost:{harness.grpc_port}"
    for pair, lets_in in ((own, True), ((None, None), False)):
        credentials = grpc.ssl_channel_credentials(trust, *pair)
        async with grpc.aio.secure_channel(target, credentials) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            if lets_in:
                assert await infer(b"\x0a\x01m", timeout=20) == b"\x0a\x01m"
            else:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await infer(b"\x0a\x01m", timeout=5)
                assert error.value.code() in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )

"""TLS with real handshakes: who is let in, what is replaced while it runs, what is never spoken."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess

import pytest
import yaml
from aiohttp import ClientError, ClientSession, TCPConnector, web
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema
from roma.config.security import TlsConfig
from roma.domain.errors import ConfigError, LaunchError
from roma.security import peers
from roma.security.tls import certificate_name, client_context, server_context
from tests.support.served import served


@contextlib.asynccontextmanager
async def serving(context):
    """Tell each caller the name in its certificate."""

    async def handle(request):
        found = request.transport.get_extra_info("peercert")
        return web.Response(text=str(certificate_name(found)))

    async with served(web.route("*", "/{path:.*}", handle), tls=context) as port:
        yield port


async def call(port, context):
    async with (
        ClientSession(connector=TCPConnector(ssl=context)) as session,
        session.get(f"https://127.0.0.1:{port}/") as response,
    ):
        return await response.text()


async def serial(port, context):
    """Return the serial number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return found


async def test_a_caller_sees_the_certificate_of_the_authority_it_trusts(authority, other_authority):
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"))
    async with serving(server_context(tls)) as port:
        assert await call(port, client_context(authority.file)) == "None"
        for context in (client_context(other_authority.file), client_context(None)):
            with pytest.raises(OSError, match="certificate verify failed"):
                await call(port, context)


async def test_a_name_that_is_not_in_the_certificate_is_not_believed(authority):
    tls = TlsConfig(**authority.issue("server", "elsewhere.example"))
    async with serving(server_context(tls)) as port:
        with pytest.raises(OSError, match="certificate verify failed"):
            await call(port, client_context(authority.file))


async def test_mutual_tls_lets_in_who_has_a_certificate_and_tells_who(authority, other_authority):
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"), client_ca=authority.file)
    own = TlsConfig(**authority.issue("client", "reports.example"))
    foreign = TlsConfig(**other_authority.issue("foreign", "reports.example"))
    async with serving(server_context(tls)) as port:
        assert await call(port, client_context(authority.file, own)) == "reports.example"
        for identity in (None, foreign):
            with pytest.raises((ClientError, OSError)):
                await call(port, client_context(authority.file, identity))


async def test_a_replaced_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    authority, caplog
):
    caplog.set_level("INFO")
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"))
    context, trust = server_context(tls), client_context(authority.file)
    async with serving(context) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        before = await serial(port, trust)
        assert not context.look()
        authority.issue("server", "127.0.0.1")
        assert context.look()
        assert await serial(port, trust) != before
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.read()
        writer.close()


async def test_what_is_wrong_is_not_taken_over(authority, caplog):
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"))
    context, trust = server_context(tls), client_context(authority.file)
    async with serving(context) as port:
        before = await serial(port, trust)
        good = tls.key.read_bytes()
        other = authority.issue("other", "127.0.0.1")
        # That of another certificate: as in the middle of being replaced.
        for text in (b"", b"no PEM", TlsConfig(**other).key.read_bytes()):
            tls.key.write_bytes(text)
            assert not context.look()
            assert await serial(port, trust) == before
        tls.key.unlink()
        assert not context.look()
        assert await serial(port, trust) == before
        assert "stays in force" in caplog.text
        assert good.decode()[40:80] not in caplog.text


async def test_an_authority_that_is_taken_away_is_believed_no_longer(authority, other_authority):
    trusted = authority.folder / "clients.pem"
    trusted.write_bytes(authority.file.read_bytes() + other_authority.file.read_bytes())
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"), client_ca=trusted)
    theirs = TlsConfig(**other_authority.issue("theirs", "x.example"))
    context, caller = server_context(tls), client_context(authority.file, theirs)
    async with serving(context) as port:
        assert await call(port, caller) == "x.example"
        trusted.write_bytes(authority.file.read_bytes())
        assert context.look()
        with pytest.raises((ClientError, OSError)):
            await call(port, caller)


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("missing.pem", "server.key", "No such file"),
        ("server.pem", "missing.key", "No such file"),
        ("server.key", "server.key", "cannot be used"),
        ("server.pem", "other.key", "key values mismatch"),
        ("server.pem", "locked.key", "has a password"),  # nobody is asked for its password
    ],
)
def test_files_that_cannot_be_used_are_named(authority, certificate, key, message):
    authority.issue("server", "127.0.0.1")
    authority.issue("other", "127.0.0.1")
    folder = authority.folder
    private = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    locked = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    (folder / "locked.key").write_bytes(locked)
    with pytest.raises(ConfigError, match=message) as caught:
        server_context(TlsConfig(certificate=folder / certificate, key=folder / key))
    assert str(caught.value).startswith(
        str(folder / (key if key in ("missing.key", "locked.key") else certificate))
    )


def handshake(port, *options):
    argv = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options]
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=30, check=False)
    return done.returncode == 0 and b"Cipher is (NONE)" not in done.stdout


async def test_old_versions_and_weak_ciphers_are_not_spoken(authority):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    tls = TlsConfig(**authority.issue("server", "127.0.0.1"))
    async with serving(server_context(tls)) as port:

        async def spoken(*options):
            return await asyncio.to_thread(handshake, port, *options)

        assert await spoken("-tls1_2")
        assert await spoken("-tls1_3")
        weakest = "ALL:@SECLEVEL=0"
        assert not await spoken("-tls1", "-cipher", weakest)
        assert not await spoken("-tls1_1", "-cipher", weakest)
        assert not await spoken("-tls1_2", "-cipher", "AES128-SHA")  # no forward secrecy
        assert not await spoken("-tls1_2", "-cipher", "ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA")


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("commonName", "cn"),),)}, "cn"),
        ({"subject": ((("commonName", "cn"),),), "subjectAltName": (("DNS", "d"),)}, "d"),
        ({"subjectAltName": (("DNS", "d"), ("URI", "spiffe://x/y"), ("DNS", "e"))}, "spiffe://x/y"),
        ({"subjectAltName": (("email", "m@x"), ("IP Address", "1.2.3.4"))}, "m@x"),
    ],
)
def test_the_name_of_a_caller(certificate, name):
    assert certificate_name(certificate) == name


@pytest.mark.parametrize("nodes", ["node: a", "nodeSelector: {disk: ssd}"])
async def test_a_dispatcher_trusts_the_authority_of_supervisors_that_are_yet_to_come(
    authority, nodes
):
    issued = authority.issue("supervisor", "127.0.0.1")
    tls = f"{{certificate: {issued['certificate']}, key: {issued['key']}, ca: {authority.file}}}"
    text = f"""
models: {{m: {{sla: {{response_time: 1}}}}}}
workers: [{{name: w, backend: kubernetes, cores: 4, {nodes}}}]
"""
    assert peers.to_supervisors(schema.parse(text)) is None
    config = schema.parse(f"{text}control: {{tls: {tls}}}")
    async with serving(server_context(config.control.tls)) as port:
        assert await call(port, peers.to_supervisors(config)) == "None"


@pytest.mark.parametrize(
    ("name", "is_trusted", "fault"),
    [
        (
            "127.0.0.1",
            False,
            "unable to get local issuer certificate: the file is written; to wait, gateway.tls.ca "
            "must name the authority of its certificate",
        ),
        (
            "roma.example",
            True,
            "IP address mismatch, certificate is not valid for '127.0.0.1': the file is written; "
            "to wait, its certificate must name 127.0.0.1, too",
        ),
    ],
)
async def test_who_waits_for_a_gateway_is_told_by_what_to_trust_it(
    authority, tmp_path, name, is_trusted, fault
):
    tls = authority.issue("server", name)
    if is_trusted:
        tls["ca"] = authority.file
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").touch()
    document = {
        "models": {"a": {"path": "m", "sla": {"response_time": 1}}},
        "workers": [{"cores": 2}],
    }
    file = tmp_path / "roma.yaml"
    async with serving(server_context(TlsConfig(**tls))) as port:
        document["gateway"] = {"port": port, "tls": {name: str(path) for name, path in tls.items()}}
        file.write_text(yaml.safe_dump(document))
        added = ["models", "add", str(file), "b", "--path", str(tmp_path / "m")]
        done = await asyncio.to_thread(CliRunner().invoke, app, [*added, "--response-time", "1"])
    assert isinstance(done.exception, LaunchError)
    assert str(done.exception) == f"https://127.0.0.1:{port}/v1/models/b: {fault}"

"""An engine whose certificates are renewed, with their authority, while a broker runs."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import trustme
from aiohttp import web
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from roma.config import watched_file
from roma.config.workers import DockerConfig
from roma.domain.errors import ConfigError, EngineError
from roma.tools.demo.ports import free_ports
from supervisor.broker.engine import connected, tls_context
from tests.support.served import served


@asynccontextmanager
async def engine(port, authority):
    """Run an engine that demands a certificate of this authority, as with `--tlsverify`."""

    async def inspect(request):
        return web.json_response({"Id": request.match_info["name"]})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with served(web.get("/containers/{name}/json", inspect), port=port, tls=context):
        yield


def write(directory, authority):
    """Write the files as Docker's own client wants them."""
    mine = authority.issue_cert("roma")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    mine.private_key_pem.write_to_path(str(directory / "key.pem"))
    (directory / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in mine.cert_chain_pems))


async def test_it_is_reached_with_the_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_file, "LOOK", 0.01)
    old, new, (port,) = trustme.CA(), trustme.CA(), free_ports(1)
    write(tmp_path, old)
    docker = DockerConfig(host=f"tcp://127.0.0.1:{port}", tls=tmp_path, address="127.0.0.1")
    async with connected(docker) as far:
        async with engine(port, old):
            assert await far.inspect("c") == {"Id": "c"}
        write(tmp_path, new)
        async with engine(port, new):
            assert await until_it_answers(far) == {"Id": "c"}


async def until_it_answers(far, limit=60.0):
    """Return its answer; the limit only bounds a failing test."""
    async with asyncio.timeout(limit):
        while True:
            try:
                return await far.inspect("c")
            except EngineError:
                await asyncio.sleep(0.01)


def test_a_key_with_a_password_is_refused(tmp_path):
    write(tmp_path, trustme.CA())
    key = load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    kept = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "key.pem").write_bytes(kept)
    with pytest.raises(ConfigError, match=r"^docker\.tls = .*: "):
        tls_context(tmp_path)

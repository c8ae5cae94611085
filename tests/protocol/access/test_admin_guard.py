"""The admin port and a supervisor's: each part asks for its own secret, and for a name we have."""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml
from yarl import URL

from dispatcher.live import app as dispatcher_app
from roma.config import schema as configs
from roma.domain.errors import ExchangeError
from roma.domain.exchange import ExchangeRequest
from roma.security import tokens
from roma.security.tls import client_context
from roma.telemetry import logs
from roma.tools.demo.ports import free_ports
from supervisor.live.peer import Peer

ROOT = Path(__file__).parents[3]
PATHS = {
    "admin": ["/", "/page/app.js", "/control/v1/dashboard", "/control/v1/decisions", "/nowhere"],
    "exchange": ["/control/v1/report", "/control/v1/needs"],
    "metrics": ["/metrics"],
}


def secrets(folder):
    """Write the three token files; return their texts."""
    texts = {name: tokens.new() for name in PATHS}
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")
    return texts


def written(folder, **sections):
    port, admin, control, backend = free_ports(4)
    data = {
        "models": {"m": {"sla": {"response_time": 1}}},
        "workers": [
            {
                "backend": "static",
                "cores": 2,
                "executables": [{"url": f"http://127.0.0.1:{backend}", "model": "m"}],
            }
        ],
        "gateway": {"port": port, "admin_port": admin, **sections.pop("gateway", {})},
        "control": {"port": control, **sections.pop("control", {})},
        **sections,
    }
    file = folder / "roma.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


@contextlib.asynccontextmanager
async def serving(folder, **sections):
    loaded = configs.load(written(folder, **sections))
    async with dispatcher_app.running(loaded), aiohttp.ClientSession() as session:
        yield loaded, session


async def test_clients_reach_the_gateway_over_tls(tmp_path, authority):
    tls = authority.issue("here", "127.0.0.1")
    async with serving(tmp_path, gateway={"tls": tls}) as (loaded, session):
        url = loaded.gateway.url
        assert url.startswith("https://127.0.0.1:")
        async with session.get(url + "/healthz", ssl=client_context(authority.file)) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(url.replace("https", "http") + "/healthz")


ALL = {"admin": "admin", "exchange": "exchange", "metrics": "metrics"}


async def status(session, url, token=None, **headers):
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with session.get(url, headers=headers) as response:
        return response.status, response.headers, await response.text()


async def test_each_part_has_its_own_token_and_takes_no_other(tmp_path):
    texts = secrets(tmp_path)
    async with serving(tmp_path, tokens=ALL) as (loaded, session):
        url = loaded.gateway.admin_url
        for part, paths in PATHS.items():
            for path in paths:
                for name, token in [*texts.items(), ("none", None), ("wrong", "x" * 43)]:
                    found, headers, body = await status(session, url + path, token)
                    if name == part:
                        assert found != 401, (path, name)
                        continue
                    assert found == 401, (path, name)
                    scheme = "Basic" if part == "admin" else "Bearer"
                    assert headers["WWW-Authenticate"].startswith(f'{scheme} realm="ROMA"')
                    assert token is None or token not in body
        assert (await status(session, url + "/healthz"))[0] == 200


async def test_a_browser_shows_the_token_as_password_and_to_the_page_alone(tmp_path):
    texts = secrets(tmp_path)
    async with serving(tmp_path, tokens=ALL) as (loaded, session):
        url = loaded.gateway.admin_url

        def basic(text):
            return "Basic " + base64.b64encode(text.encode()).decode()

        async def found(path, authorization):
            return (await status(session, url + path, Authorization=authorization))[0]

        assert await found("/", basic(f"anybody:{texts['admin']}")) == 200
        assert await found("/", basic(f":{texts['admin']}")) == 200
        for wrong in (
            basic(texts["admin"]),
            basic("x:y"),
            "Basic",
            "Basic !!!",
            "Basic /w==",
            f"Digest {texts['admin']}",
            texts["admin"],
        ):
            assert await found("/", wrong) == 401
        # What a browser sends by itself, whoever's page asks it to, must change nothing.
        assert await found("/control/v1/report", basic(f"x:{texts['exchange']}")) == 401
        assert await found("/metrics", basic(f"x:{texts['metrics']}")) == 401


@pytest.mark.parametrize(
    "path",
    ["/control/v1/%72eport", "/control/v1//report", "/control/v1/report/", "//control/v1/report"],
)
async def test_no_spelling_of_a_path_goes_around_its_door(tmp_path, path):
    secrets(tmp_path)
    async with serving(tmp_path, tokens=ALL) as (loaded, _):
        g = loaded.gateway
        reader, writer = await asyncio.open_connection(g.admin_host, g.admin_port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LOCALHOST:8500", True),
        ("127.0.0.1:1", True),
        ("[::1]:8500", True),
        ("192.0.2.7", True),
        ("roma.example", True),
        ("roma.example.:8500", True),
        ("dispatcher", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("roma.example@evil.example", False),
        ("", False),
        (None, False),
    ],
)
async def test_names_that_nobody_gave_us_are_refused(tmp_path, host, known):
    sections = {
        "gateway": {"admin_names": ["roma.example"]},
        "control": {"dispatchers": ["http://dispatcher:8500"]},
    }
    async with serving(tmp_path, **sections) as (loaded, _):
        g = loaded.gateway
        for path in ("/", "/control/v1/report", "/metrics", "/healthz"):
            reader, writer = await asyncio.open_connection(g.admin_host, g.admin_port)
            named = "" if host is None else f"Host: {host}\r\n"
            version = "1.0" if host is None else "1.1"
            writer.write(f"GET {path} HTTP/{version}\r\n{named}Connection: close\r\n\r\n".encode())
            found = int((await reader.readline()).split()[1])
            writer.close()
            assert found == (200 if known or path == "/healthz" else 421), path


async def test_exchange_and_metrics_can_have_listeners_of_their_own(tmp_path):
    exchange, metrics = free_ports(2)
    own = {"exchange_port": exchange, "metrics_port": metrics}
    async with serving(tmp_path, gateway=own) as (loaded, session):
        ports = {"admin": loaded.gateway.admin_port, "exchange": exchange, "metrics": metrics}
        for part, port in ports.items():
            for other, paths in PATHS.items():
                found, _, _ = await status(session, f"http://127.0.0.1:{port}{paths[0]}")
                assert found == (200 if other == part else 404), (part, other)
            assert (await status(session, f"http://127.0.0.1:{port}/healthz"))[0] == 200
        assert loaded.dispatcher_urls == (f"http://127.0.0.1:{exchange}",)


async def test_a_supervisor_shows_its_token_and_a_replaced_one_goes_on(tmp_path):
    secrets(tmp_path)
    async with serving(tmp_path, tokens={"exchange": "exchange"}) as (loaded, session):
        (url,) = loaded.dispatcher_urls
        token = tokens.watched(tmp_path / "exchange")
        peer, unknown = Peer(session, url, 5, token), Peer(session, url, 5)
        assert (await peer.report("local")).models[0].model == "m"
        await peer.confirm(ExchangeRequest("local", ()))
        for call in (unknown.report("local"), unknown.confirm(ExchangeRequest("local", ()))):
            with pytest.raises(ExchangeError, match="status 401"):
                await call
        old = (tmp_path / "exchange").read_text()
        (tmp_path / "exchange").write_text(f"{tokens.new()}\n{old}")
        assert token.look()
        async with asyncio.timeout(20):  # until the dispatcher has looked too
            while True:
                with contextlib.suppress(ExchangeError):
                    await peer.report("local")
                    break
                await asyncio.sleep(0.05)


async def test_what_is_refused_is_logged_without_what_was_sent(tmp_path, caplog):
    texts = secrets(tmp_path)
    async with serving(tmp_path, tokens=ALL) as (loaded, session):
        url = loaded.gateway.admin_url
        await status(session, url + "/metrics", "x" * 43)
        await status(session, url + "/metrics", texts["admin"])
    assert "127.0.0.1: GET /metrics: no valid token" in caplog.text
    assert not any(text in caplog.text for text in [*texts.values(), "x" * 43])


async def test_a_body_that_nobody_reads_is_not_unpacked(tmp_path, caplog):
    """No token is needed to send one, and it may be a bomb, or no gzip at all."""
    secrets(tmp_path)
    async with serving(tmp_path, tokens={"admin": "admin"}) as (loaded, session):
        for path, expected in (("/", 401), ("/healthz", 401), ("/control/v1/applied", 400)):
            url, coded = loaded.gateway.admin_url + path, {"Content-Encoding": "gzip"}
            async with session.post(url, data=b"abc", headers=coded) as answer:
                assert answer.status == expected
    assert not [record for record in caplog.records if record.exc_info]


async def test_no_path_forges_a_line_of_the_log(tmp_path, caplog):
    secrets(tmp_path)
    async with serving(tmp_path, tokens=ALL) as (loaded, session):
        forged = "/%0A2026-01-01%2000:00:00,000%20ERROR%20all%20is%20lost%1B[2J"
        url = URL(loaded.gateway.admin_url + forged, encoded=True)
        assert (await status(session, url))[0] == 401
    (record,) = [r for r in caplog.records if "no valid token" in r.getMessage()]
    line = logs.ConsoleFormatter().format(record)
    assert "\n" not in line
    assert r"GET /\n2026-01-01 00:00:00,000 ERROR all is lost\x1b[2J: no valid token" in line


def roma(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "roma", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


async def up(folder, file):
    """A real `roma up` of the file, until the block ends."""
    with (folder / "up.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "roma", "up", str(file)), stdout=log, stderr=log, cwd=ROOT
        )


async def until_controlled(folder, process, *arguments):
    """Wait until the board, over the network and with its token, says that both halves talk."""
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, (folder / "up.log").read_text()
            done = await asyncio.to_thread(roma, "status", "--json", *arguments)
            if done.returncode == 0:
                (worker,) = json.loads(done.stdout)["workers"]
                if worker["answers"] and (worker["ticks"] or 0) >= 2:
                    return
            await asyncio.sleep(0.3)


@pytest.mark.long
@pytest.mark.parametrize("secured", ["tokens", "tokens and TLS", "mutual TLS"])
async def test_all_programs_find_each_other(tmp_path, authority, secured):
    texts = secrets(tmp_path)
    sections = {"tokens": ALL}
    if "TLS" in secured:
        tls = {**authority.issue("here", "127.0.0.1"), "ca": str(authority.file)}
        if secured == "mutual TLS":
            tls["client_ca"] = str(authority.file)
        sections |= {"gateway": {"admin_tls": tls}, "control": {"tls": tls}}
    file = written(tmp_path, **sections)
    process = await up(tmp_path, file)
    try:
        await until_controlled(tmp_path, process, "--config", file)
        url = configs.load(file).gateway.admin_url
        refused = roma("status", "--url", url, "--ca", authority.file)
        assert refused.returncode == 1
        if secured == "mutual TLS":
            assert "no dispatcher answers" in refused.stderr
        else:
            assert refused.stderr == f"{url}: asks for its token: --token-file, or --config\n"
            shown = roma(
                *("status", "--url", url, "--ca", authority.file),
                *("--token-file", tmp_path / "admin"),
            )
            assert shown.returncode == 0
        told = roma("explain", "m", "--config", file)
        assert told.returncode == 0, told.stderr
        assert "does not answer" not in told.stdout  # the supervisor told its part
    finally:
        process.terminate()
        await process.wait()
    said = (tmp_path / "up.log").read_text()
    # Only our own call without a token was refused.
    assert not re.search("status 40[0-9]|(report|applied|state|decisions): no valid token", said), (
        said
    )
    assert not any(text in said for text in texts.values())


async def test_no_answer_and_no_line_holds_a_secret(tmp_path, caplog):
    caplog.set_level("DEBUG")
    texts = secrets(tmp_path)
    secret = list(texts.values())
    async with serving(tmp_path, tokens=ALL) as (loaded, session):
        said = [repr(loaded), str(loaded.model_dump())]
        for part, paths in PATHS.items():
            for path in paths:
                _, headers, body = await status(
                    session, loaded.gateway.admin_url + path, texts[part]
                )
                said += [str(headers), body]
        said += [repr(tokens.watched(tmp_path / "admin")), repr(tokens.read(tmp_path / "admin"))]
    said += [roma("config", "check", tmp_path / "roma.yaml").stdout, caplog.text]
    for text in said:
        assert not any(s in text for s in secret)
        assert not any(hashlib.sha256(s.encode()).hexdigest() in text for s in secret)

"""Engines of other hosts: through certificates and through ssh, and what refuses to lead there."""

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from roma.config import schema as roma_config
from roma.config.workers import DockerConfig
from roma.domain.errors import ConfigError, EngineError
from roma.tools.demo.ports import free_ports
from supervisor.broker.broker import Broker
from supervisor.broker.engine import NotFound, connected
from supervisor.broker.tunnel import tunnel
from supervisor.cgroups import container_group, container_hierarchy
from tests.support.up import alive, kill, write_config

CLIENT = """\
IdentityFile {0}/client
IdentitiesOnly yes
UserKnownHostsFile {0}/known_hosts
"""

SERVER = """\
ListenAddress 127.0.0.1
HostKey {0}/server
AuthorizedKeysFile {0}/authorized_keys
PidFile none
StrictModes no
UsePAM no
"""


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    """Run an ssh server that lets us in; return its port and the folder of its keys."""
    program = shutil.which("sshd")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs openssh-server and root")
    directory, tools = tmp_path / "ssh", tmp_path / "tools"
    directory.mkdir()
    tools.mkdir()
    (port,) = free_ports(1)
    for name in ("server", "client", "unknown"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name]
        subprocess.run(keygen, check=True)
    server, client = ((directory / f"{name}.pub").read_text() for name in ("server", "client"))
    (directory / "authorized_keys").write_text(client)
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {server}")
    (directory / "sshd_config").write_text(SERVER.format(directory))
    (directory / "config").write_text(CLIENT.format(directory))
    # ROMA calls the user's ssh with the user's settings: here these.
    (tools / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/config "$@"\n'
    )
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own: it does not start without it
    with (tmp_path / "sshd.log").open("wb") as log:
        argv = [program, "-D", "-e", "-f", str(directory / "sshd_config"), "-p", str(port)]
        process = subprocess.Popen(argv, stderr=log)
    try:
        _until_it_listens(process, tmp_path / "sshd.log")
        yield port, directory
    finally:
        process.terminate()
        process.wait()


def _until_it_listens(process, log, limit=60.0):
    """A client that comes before the server listens is refused."""
    end = time.monotonic() + limit
    while "Server listening" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


@pytest.fixture
def over_ssh(sshd):
    """This machine's own engine, as if it were far away."""
    port, _ = sshd
    return {"host": f"ssh://{getpass.getuser()}@127.0.0.1:{port}", "address": "127.0.0.1"}


@pytest.fixture
def over_tls(host):
    return {"host": host.tcp, "tls": str(host.tls / "client"), "address": host.address}


@pytest.fixture
def write(tmp_path, worker_image):
    """Write a roma.yaml with models `a` and `b` for an engine."""

    def write(way):
        docker = {"server": "roma", "image": worker_image, "run_dir": str(tmp_path), **way}
        return write_config(
            tmp_path,
            dict.fromkeys("ab", tmp_path),
            name=f"remote-{os.getpid()}",
            worker={"backend": "docker", "docker": docker},
        )

    return write


@pytest.mark.parametrize("way", ["over_tls", "over_ssh"])
async def test_a_broker_does_there_what_it_does_here(request, write, way):
    config = roma_config.load(write(request.getfixturevalue(way)))
    (worker,) = config.workers
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(connected(worker.containers))
        broker = Broker(config, worker, engine, asyncio.get_running_loop().time)
        stack.push_async_callback(broker.remove, "a@local")
        await broker.create("a@local")
        found = (await broker.containers())["a@local"]
        assert found.running
        assert await broker.grant({"a@local": 0.4}) == {"a@local": 0.4}
        group = container_group(container_hierarchy(), found.id, 0.05)
        before = group.read()
        assert before.cores == 0.4
        readings = await broker.readings()
        after = group.read()
        # What the engine says is what the kernel says.
        said = readings["a@local"]
        assert said.cores == 0.4
        assert before.usage <= said.usage <= after.usage
        assert before.periods <= said.periods <= after.periods
        assert before.throttled <= said.throttled <= after.throttled
        assert isinstance(readings["b@local"], NotFound)
        await broker.remove("a@local")
        assert await broker.containers() == {}
        assert isinstance((await broker.readings())["a@local"], NotFound)


async def test_a_container_that_does_not_run_has_no_reading(write, over_tls, host):
    config = roma_config.load(write(over_tls))
    (worker,) = config.workers
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(connected(worker.containers))
        broker = Broker(config, worker, engine, asyncio.get_running_loop().time)
        stack.push_async_callback(broker.remove, "a@local")
        await broker.create("a@local")
        host.docker("stop", "--time", "0", broker.executables["a@local"].container)
        said = (await broker.readings())["a@local"]
        assert "does not run" in str(said)


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("unknown", "alert bad certificate|the engine may refuse this certificate"),
        ("misled", "certificate verify failed"),
    ],
)
async def test_wrong_certificates_are_refused_and_named(host, who, why):
    docker = DockerConfig(host=host.tcp, tls=host.tls / who, address=host.address)
    async with connected(docker) as engine:
        with pytest.raises(EngineError, match=rf"docker\.tls = .*/{who}: .*({why})"):
            await engine.containers({})


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
async def test_a_missing_file_is_named(host, tmp_path, name):
    shutil.copytree(host.tls / "client", tmp_path / "tls")
    (tmp_path / "tls" / name).unlink()
    docker = DockerConfig(host=host.tcp, tls=tmp_path / "tls", address=host.address)
    with pytest.raises(ConfigError, match=rf"docker\.tls = .*/tls: must have a file {name}"):
        async with connected(docker):
            pass


@pytest.mark.parametrize("command", ["broker", "up"])
def test_a_missing_file_is_one_clear_line_at_once(write, over_tls, tmp_path, command):
    shutil.copytree(over_tls["tls"], tmp_path / "tls")
    (tmp_path / "tls/key.pem").unlink()
    file = write(over_tls | {"tls": "tls"})
    done = subprocess.run(
        [sys.executable, "-m", "roma", command, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"docker.tls = {tmp_path}/tls: must have a file key.pem\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "restarting" not in done.stderr


@pytest.fixture
def scratch():
    """Where a killed broker leaves its tunnel's socket; a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        yield directory


def ssh_of(parent):
    """Pids of the ssh clients that a process runs."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat.read_text().partition(" (")
            comm, _, fields = rest.rpartition(") ")
            if comm == "ssh" and int(fields.split()[1]) == parent and alive(int(pid)):
                found.append(int(pid))
    return found


async def answers(engine):
    """Wait until the engine answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await engine.containers({})
            except EngineError:
                await asyncio.sleep(0.1)


async def test_a_connection_that_the_user_s_ssh_shares_is_not_used(sshd):
    """As Docker's own documentation recommends to set it: it would outlive the broker."""
    port, directory = sshd
    shared = f"ControlMaster auto\nControlPath {directory}/shared\nControlPersist yes\n"
    (directory / "config").write_text((directory / "config").read_text() + shared)
    async with tunnel(f"{getpass.getuser()}@127.0.0.1:{port}") as way:
        assert way.down == ""
        assert not (directory / "shared").exists()
        assert len(ssh_of(os.getpid())) == 1
    assert ssh_of(os.getpid()) == []


# The docker package leaves a socket that was refused to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_ssh_that_ends_is_started_again(over_ssh):
    async with connected(DockerConfig(**over_ssh)) as engine:
        await engine.containers({})
        (first,) = ssh_of(os.getpid())
        kill(first)
        await answers(engine)
        (second,) = ssh_of(os.getpid())
        assert second != first
    assert ssh_of(os.getpid()) == []


async def test_a_key_that_is_refused_is_said_in_ssh_s_own_words(over_ssh, sshd, caplog):
    _, directory = sshd
    (directory / "client").write_text((directory / "unknown").read_text())
    async with connected(DockerConfig(**over_ssh)) as engine:
        said = ""
        async with asyncio.timeout(60):  # gRPC, loaded by other tests, may write when it is forked
            while "Permission denied" not in said:
                with pytest.raises(EngineError, match=r"ssh .*@127\.0\.0\.1:\d+: ") as refused:
                    await engine.containers({})
                said = str(refused.value)
                await asyncio.sleep(0.1)
        log = directory.parent / "sshd.log"
        async with asyncio.timeout(60):  # a second and a third attempt
            while log.read_text().count("closed by authenticating user") < 3:
                await asyncio.sleep(0.1)
        assert len([r for r in caplog.records if "Permission denied" in r.getMessage()]) == 1


def test_no_ssh_outlives_its_broker(over_ssh, write, scratch):
    argv = [sys.executable, "-m", "roma", "broker", str(write(over_ssh))]
    environment = os.environ | {"TMPDIR": scratch}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as broker:
        try:
            assert any("listens in" in line for line in broker.stderr)
            (ssh,) = ssh_of(broker.pid)
        finally:
            broker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while alive(ssh) and time.monotonic() < deadline:
        time.sleep(0.05)
    outlived = alive(ssh)
    kill(ssh)
    assert not outlived

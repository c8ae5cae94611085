"""`roma broker` as a program: its two sockets, and who may call which."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from roma.config import schema as roma_config
from roma.domain.errors import BrokerRefused, EngineError
from supervisor.broker.client import calling
from supervisor.broker.server import LAUNCHER, SUPERVISOR, run_dir
from supervisor.cgroups import container_group, container_hierarchy
from tests.support.up import write_config

OTHER_USER = 65534
"""The user `nobody`."""


@pytest.fixture
def sockets():
    """A directory that other users may enter; pytest's own they may not."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        Path(directory).chmod(0o755)
        yield directory


@pytest.fixture
def file(tmp_path, sockets, standin_image):
    def write(**docker):
        docker = {"server": "roma", "image": standin_image, "run_dir": sockets, **docker}
        return write_config(
            tmp_path,
            {"a": tmp_path},
            name=f"served-{os.getpid()}",
            worker={"backend": "docker", "docker": docker},
        )

    return write


@pytest.fixture
def serve():
    """Run `roma broker` until the test ends; return the directory of its sockets."""
    running = []

    def start(file):
        process = subprocess.Popen(
            [sys.executable, "-m", "roma", "broker", str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        for line in process.stderr:
            if "listens in" in line:
                break
        config = roma_config.load(file)
        return run_dir(config, config.workers[0])

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)


def refusal(file):
    """Return what a broker says that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "roma", "broker", str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    return done.stderr


def curl(socket, method, path, body=None, user=None):
    """Call a socket with curl, as some user; return the status and the JSON answer."""
    argv = ["curl", "-sS", "-o", "-", "-w", "\n%{http_code}", "--unix-socket", str(socket)]
    argv += ["-X", method, *(["-d", body] if body is not None else []), f"http://b{path}"]
    done = subprocess.run(argv, capture_output=True, text=True, user=user, timeout=30, check=False)
    answer, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(answer) if answer.startswith("{") else answer


async def test_what_a_launcher_makes_a_supervisor_sets(file, serve):
    directory = serve(file())
    async with (
        calling(directory / LAUNCHER, 10) as launcher,
        calling(directory / SUPERVISOR, 10) as supervisor,
    ):
        await launcher.create("a@local")
        try:
            found = await supervisor.containers()
            assert found["a@local"].running
            assert await supervisor.grant({"a@local": 0.4}) == {"a@local": 0.4}
            (refused,) = (await supervisor.grant({"a@local": 40.0})).values()
            assert "must be in [0.1, 1.4]" in str(refused)
            # A supervisor makes and removes nothing.
            with pytest.raises(BrokerRefused, match="404"):
                await supervisor.remove("a@local")
            assert "a@local" in await supervisor.containers()
            with pytest.raises(BrokerRefused, match="executable = other: must be one of a@local"):
                await launcher.create("other")
        finally:
            await launcher.remove("a@local")
        assert await supervisor.containers() == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("nonsense", "body: Invalid JSON"),
        ("[]", "body: "),
        ("{}", "cores: Field required"),
        ('{"cores": {"a@local": "1"}}', "cores.a@local: Input should be a valid number"),
        ('{"cores": {"a@local": -1}}', "cores.a@local: Input should be greater than 0"),
        ('{"cores": {"a@local": NaN}}', "cores.a@local: "),
        ('{"cores": {}, "image": "evil"}', "image: Extra inputs are not permitted"),
    ],
)
def test_a_bad_body_is_answered_with_the_field_at_fault(file, serve, body, message):
    status, answer = curl(serve(file()) / SUPERVISOR, "POST", "/v1/cores", body)
    assert status == 400
    assert message in answer["error"]


def test_only_the_users_that_roma_yaml_names_may_call(file, serve):
    ours = serve(file()) / SUPERVISOR
    assert ours.stat().st_mode & 0o777 == 0o600
    assert curl(ours, "GET", "/v1/executables") == (200, {})
    ours.chmod(0o666)  # whatever the file's mode: the kernel says who calls
    status, answer = curl(ours, "GET", "/v1/executables", user=OTHER_USER)
    assert (status, answer) == (
        403,
        {"error": "user 65534 may not call this broker (docker.callers)"},
    )


def test_a_named_user_may_call(file, serve):
    theirs = serve(file(callers=[OTHER_USER])) / SUPERVISOR
    assert curl(theirs, "GET", "/v1/executables", user=OTHER_USER) == (200, {})


async def test_a_broker_that_is_not_there_is_named(tmp_path):
    async with calling(tmp_path / SUPERVISOR, 1) as client:
        with pytest.raises(EngineError, match=r"supervisor\.sock"):
            await client.containers()


def test_a_worker_without_containers_has_no_broker(tmp_path):
    written = write_config(tmp_path, {"a": tmp_path}, name="none")
    assert "workers.local.backend = process: must be docker" in refusal(written)


async def test_a_dry_run_moves_no_quota_however_silent_it_is(file, serve):
    written = file(lease=1.5)
    written.write_text(written.read_text().replace("control:\n", "control:\n  dry_run: true\n"))
    directory = serve(written)
    async with calling(directory / LAUNCHER, 10) as launcher:
        await launcher.create("a@local")
        try:
            container = (await launcher.containers())["a@local"].id
            await asyncio.sleep(2.5)  # lease, and time to act on it
            group = container_group(container_hierarchy(), container, 0.05)
            assert group.read().cores == 0.7  # as it was made; its safe share is 1.4
        finally:
            await launcher.remove("a@local")

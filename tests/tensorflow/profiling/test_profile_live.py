"""`roma profile` as a user starts it: a real model, a real cgroup, a file that is read back."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
import yaml

from roma.cli import profile_command
from roma.config import profile as profiles
from roma.config import schema as roma_config
from roma.config.placement import executables
from roma.deploy.model_servers import cgroups, model_server
from roma.domain.errors import ConfigError
from roma.tools.demo.ports import free_ports
from supervisor.cgroups import find_hierarchy
from tests.support.up import alive, write_config


def command(file, *options):
    return [sys.executable, "-m", "roma", "profile", str(file), *options]


def profile(file, *options):
    return subprocess.run(
        command(file, *options), check=False, capture_output=True, text=True, timeout=200
    )


def group_of(file, model):
    loaded = roma_config.load(file)
    executable = next(e for e in executables(loaded) if e.spec.models == (model,))
    return find_hierarchy().group(executable.cgroup, loaded.control.cfs_period)


def gone(group):
    return not group.pids() and not any(d.exists() for d in group.directories)


@pytest.fixture
def file(tmp_path, demo_models):
    return write_config(tmp_path, demo_models, name=f"profile-{os.getpid()}")


def test_the_cost_of_a_model_does_not_depend_on_its_quota(file):
    done = profile(
        file, "--model=digits", "--cores=0.1,0.5,1", "--batch=256", "--seconds=1", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = profiles.load(file.with_name("profile.yaml"))
    assert profiles.Profiles.model_validate(json.loads(done.stdout)) == found
    assert list(found.models) == ["digits"]
    digits = found.models["digits"]
    at = {(point.cores, point.batch): point for point in digits.points}
    assert 0.5 < at[0.5, 1].cost / at[1, 1].cost < 2
    assert 0.5 < digits.cost / at[1, 1].cost < 2
    assert at[1, 256].cost > 2 * at[1, 1].cost
    # However busy the machine is: a tenth of a core gives no more.
    slowest = at[0.1, 256]
    assert slowest.cost / slowest.response_time < 0.2
    assert digits.parallelism >= 1
    assert digits.gpu_time is None
    assert gone(group_of(file, "digits"))


def test_a_file_may_name_the_profile_that_is_yet_to_be_written(file):
    data = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(data | {"profile": "costs.yaml"}))
    done = profile(file, "--model=digits", "--cores=1", "--batch=1", "--seconds=0.2")
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout
    measured = profiles.load(file.with_name("costs.yaml")).models["digits"]
    assert roma_config.load(file).models["digits"].profile == measured


async def test_servers_of_others_keep_their_quota(file, demo_models, tmp_path):
    started = roma_config.load(file)
    served = next(e for e in executables(started) if e.spec.models == ("digits",))
    data = yaml.safe_load(file.read_text())
    data["models"] = {"digits": data["models"]["digits"]}
    data["workers"] = [
        {
            "name": "there",
            "backend": "static",
            "cores": 2,
            "executables": [
                {"url": served.url, "model": "digits", "cgroup": served.cgroup},
                # The same server by another name stands for one with a GPU.
                {"url": f"http://localhost:{served.port}", "device": "gpu"},
            ],
        }
    ]
    (tmp_path / "static").mkdir()
    static = tmp_path / "static" / "roma.yaml"
    static.write_text(yaml.safe_dump(data))
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"instances": [[[0] * 8] * 8]}))
    options = ["--batch=1,2", "--seconds=0.3", f"--body=digits={body}"]
    refused = await asyncio.to_thread(profile, static, *options)
    assert (refused.returncode, refused.stderr.strip().splitlines()[-1]) == (
        2,
        f"model digits: not available at {served.url}",
    )
    async with cgroups(started, find_hierarchy(), [served]) as groups:
        group = groups[served.name]
        child = model_server(served, group, 2**20, tmp_path)
        child.start()
        try:
            async with asyncio.timeout(60):
                while "ready on" not in log(tmp_path, served):
                    await asyncio.sleep(0.1)
            group.set_cores(0.4)
            done = await asyncio.to_thread(profile, static, *options)
            assert group.read().cores == pytest.approx(0.4)
        finally:
            group.lift()
            await child.stop()
    assert done.returncode == 0, done.stderr
    digits = profiles.load(static.with_name("profile.yaml")).models["digits"]
    assert {(point.cores, point.batch) for point in digits.points} == {(0.4, 1), (0.4, 2)}
    assert digits.gpu_time > 0


def log(directory, executable):
    file = directory / f"{executable.name}.log"
    return file.read_text() if file.exists() else ""


def test_ctrl_c_leaves_nothing_behind(file):
    group = group_of(file, "digits")
    process = subprocess.Popen(
        # A shell starts what runs in its background with this signal ignored.
        ["env", "--default-signal=INT", *command(file, "--model=digits")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "digits: 0.25 cores" in line:
                    break
            servers = group.pids()
            assert len(servers) == 1, said
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in errors
    assert not any(alive(server) for server in servers)
    assert gone(group)
    assert not file.with_name("profile.yaml").exists()


def profile_quickly(file, **given):
    profile_command.command(file, **({"batch": "1", "seconds": 0.1} | given))


def test_a_model_that_reads_text_needs_a_body(file, tmp_path, demo_models):
    copy = tmp_path / "photos"
    shutil.copytree(demo_models["photos"], copy, ignore=shutil.ignore_patterns("assets.extra"))
    data = yaml.safe_load(file.read_text())
    data["models"]["photos"]["path"] = str(copy)
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError) as caught:
        profile_quickly(file, model=["photos"])
    assert str(caught.value) == (
        'models.photos: no inputs to measure with: input "image_bytes" is DT_STRING, which cannot '
        "be guessed; give real ones with --body photos=FILE"
    )
    assert gone(group_of(file, "photos"))


def test_a_body_that_the_model_refuses_is_quoted(file, tmp_path):
    body = tmp_path / "body.json"
    body.write_text('{"instances": [[1, 2]]}')
    with pytest.raises(
        ConfigError, match=r"model digits at .*, a request of batch 1: answered 400"
    ):
        profile_quickly(file, model=["digits"], body=[f"digits={body}"])
    assert gone(group_of(file, "digits"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": ["cats"]}, "--model = cats: must be one of digits, photos"),
        ({"cores": "1,x"}, "--cores = 1,x: must be numbers > 0, separated by commas"),
        ({"batch": "0"}, "--batch = 0: must be numbers > 0, separated by commas"),
        ({"body": ["digits"]}, "--body = digits: must be MODEL=FILE"),
        ({"body": ["cats=x"]}, "--body = cats=x: model must be one of digits, photos"),
    ],
)
def test_bad_options_are_one_line(file, given, text):
    with pytest.raises(ConfigError) as caught:
        profile_quickly(file, **given)
    assert str(caught.value) == text


def test_a_model_server_is_measured_through_its_socket(file):
    data = yaml.safe_load(file.read_text())
    data["workers"][0]["sockets"] = str(file.parent / "s")
    file.write_text(yaml.safe_dump(data))
    done = profile(file, "--model=digits", "--cores=1", "--batch=1", "--seconds=0.5")
    assert done.returncode == 0, done.stderr
    assert list(profiles.load(file.with_name("profile.yaml")).models) == ["digits"]
    assert list((file.parent / "s").iterdir()) == []


def test_a_model_that_is_not_there_and_a_port_in_use_are_one_line_each(file, demo_models):
    data = yaml.safe_load(file.read_text())
    data["models"]["photos"]["path"] = "nowhere"
    file.write_text(yaml.safe_dump(data))
    done = profile(file, "--model=photos")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "nowhere: No such file or directory" in done.stderr
    (port,) = free_ports(1)
    data["workers"][0]["base_port"] = port
    file.write_text(yaml.safe_dump(data))
    with socket.create_server(("127.0.0.1", port)):
        done = profile(file, "--model=digits")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert gone(group_of(file, "digits"))

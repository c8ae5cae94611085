"""The rendered Compose file: valid, what the committed one says, and a stack that really runs."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from roma import config as roma_config
from roma.cli.app import app
from roma.errors import ConfigError
from roma.launch.compose import render
from supervisor.actuators.cgroup import container_group, container_hierarchy
from tests.support.engine import docker
from tests.support.up import Up, free_ports

COMPOSE = Path(__file__).parents[2] / "compose"

FILE = """
name: NAME
models:
  a: {path: models/a, sla: {response_time: 1}, cpu: {min: 0.1, initial: 0.5}}
  b: {path: models/b, sla: {response_time: 1}, cpu: {min: 0.1, initial: 0.5}}
workers:
  - {name: host, backend: docker, cores: 2, reserved: 0.5, docker: {server: roma, image: IMAGE}}
"""


@pytest.fixture
def composed():
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")

    def run(file, *arguments, **environment):
        argv = ["docker-compose", "-f", str(file), *arguments]
        return subprocess.run(
            argv, capture_output=True, text=True, env=os.environ | environment, check=True
        ).stdout

    return run


def test_the_committed_files_are_what_their_roma_yaml_renders_to(composed):
    source = COMPOSE / "roma.yaml"
    for name, text in render(roma_config.load(source), source, COMPOSE).items():
        assert (COMPOSE / name).read_text() == text
    composed(COMPOSE / "compose.yaml", "config", "--quiet")


def test_a_gpu_is_a_profile_of_its_own(tmp_path, composed):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.replace("IMAGE", "x").replace("cores: 2,", "cores: 2, gpus: 1,"))
    text = render(roma_config.load(file), file, tmp_path)["compose.yaml"]
    services = yaml.safe_load(text)["services"]
    assert services["gpu0"]["profiles"] == ["gpu"]
    (device,) = services["gpu0"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    assert "cpu_quota" not in services["gpu0"]
    assert services["gpu0"]["volumes"] == [
        "./models/a:/models/a:ro",
        "./models/b:/models/b:ro",
    ]
    (tmp_path / "compose.yaml").write_text(text)
    composed(tmp_path / "compose.yaml", "config", "--quiet")


def test_only_the_broker_holds_the_engine_s_socket(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.replace("IMAGE", "x"))
    services = yaml.safe_load(render(roma_config.load(file), file, tmp_path)["compose.yaml"])[
        "services"
    ]
    holders = [n for n, s in services.items() if any("docker.sock" in v for v in s["volumes"])]
    assert holders == ["broker"]
    assert services["broker"]["network_mode"] == "none"
    assert "--no-launcher" in services["broker"]["command"]
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("backend: docker", "backend: process", "absent for backend process"),
        ("image: IMAGE", "image: x, direct: true", "direct = true: must be false"),
        (
            "  - {name: host",
            "  - {name: other, backend: docker, cores: 2, base_port: 9900}\n  - {name: host",
            "workers = other, host: must be one",
        ),
    ],
)
def test_what_cannot_be_rendered_is_named(tmp_path, old, new, message):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.replace(old, new).replace("IMAGE", "x"))
    with pytest.raises(ConfigError, match=message):
        render(roma_config.load(file), file, tmp_path)


async def test_the_stack_comes_up_answers_moves_quotas_and_leaves_nothing(
    tmp_path, composed, control_image, worker_image
):
    name = f"stack-{os.getpid()}"
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "b").mkdir()
    source = tmp_path / "roma.yaml"
    source.write_text(FILE.replace("NAME", name).replace("IMAGE", worker_image))
    rendered = CliRunner().invoke(app, ["render", "compose", str(source), "--out", str(tmp_path)])
    assert rendered.exit_code == 0, rendered.output
    (port,) = free_ports(1)
    settings = {"ROMA_CONTROL_IMAGE": control_image, "ROMA_PORT": str(port)}
    file, url = tmp_path / "compose.yaml", f"http://127.0.0.1:{port}"

    def quota(model):
        container = docker("inspect", "-f", "{{.Id}}", f"{name}-host-{model}")
        group = container_group(container_hierarchy(), container, 0.1)
        return group.read().cores

    async def until(condition):
        async with asyncio.timeout(90):
            while not condition():
                await asyncio.sleep(0.2)

    try:
        composed(file, "-p", name, "up", "-d", **settings)
        await until(lambda: Up.get(url, "/readyz")[0] == 200)
        await until(lambda: quota("a") == quota("b") == 0.1)  # idle: given back
        up = Up(source)
        up.url = url
        load = asyncio.create_task(up.load({"a": 30}, {"a": [b'{"instances": [1]}']}, 10))
        await until(lambda: quota("a") > 0.25)
        assert quota("b") == 0.1
        assert (await load).total.failed == 0
        users = docker("exec", f"{name}_supervisor_1", "id", "-u")
        assert users == "10001"
    except Exception as error:
        error.add_note(composed(file, "-p", name, "logs", "--tail=30", **settings))
        raise
    finally:
        composed(file, "-p", name, "down", "--volumes", "--timeout", "10", **settings)
    assert docker("ps", "-aq", "--filter", f"name={name}") == ""
    assert docker("volume", "ls", "-q", "--filter", f"name={name}") == ""
    assert docker("network", "ls", "-q", "--filter", f"name={name}") == ""

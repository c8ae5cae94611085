"""The rendered Compose file: valid, what the committed one says, and a stack that really runs."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config import schema as roma_config
from roma.deploy.compose import render
from roma.domain.errors import ConfigError
from roma.tools.demo.ports import free_ports
from supervisor.cgroups import container_group, container_hierarchy
from tests.support.engine import docker
from tests.support.prometheus import queries
from tests.support.up import Up

COMPOSE = Path(__file__).parents[3] / "compose"

FILE = """
name: NAME
models:
  a: {path: models/a, sla: {response_time: 1}, cpu: {min: 0.1, initial: 0.5}}
  b: {path: models/b, sla: {response_time: 1}, cpu: {min: 0.1, initial: 0.5}}
workers:
  - {name: host, backend: docker, cores: 2, reserved: 0.5, docker: {server: roma, image: IMAGE}}
"""


class Healthy(BaseHTTPRequestHandler):
    """Answers a health check."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


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


def rendered(directory, *changes, more=""):
    """Render FILE with other words and more sections; return what is written, by name."""
    text = FILE
    for old, new in (*changes, ("IMAGE", "x")):
        text = text.replace(old, new)
    file = directory / "roma.yaml"
    file.write_text(text + more)
    return render(roma_config.load(file), file, directory)


def services(directory, *changes, more=""):
    """Return the services of the same."""
    return yaml.safe_load(rendered(directory, *changes, more=more)["compose.yaml"])["services"]


def test_the_committed_files_are_what_their_roma_yaml_renders_to(composed):
    source = COMPOSE / "roma.yaml"
    for name, text in render(roma_config.load(source), source, COMPOSE).items():
        assert (COMPOSE / name).read_text() == text
    composed(COMPOSE / "compose.yaml", "config", "--quiet")


def test_health_checks_ask_no_proxy(tmp_path):
    found = services(tmp_path, ("NAME", "x")).values()
    checks = [service["healthcheck"] for service in found if "healthcheck" in service]
    looks = [check["test"][-1] for check in checks if "urllib" in check["test"][-1]]
    assert looks
    proxy = dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:1")
    environment = os.environ | proxy | {"no_proxy": "", "NO_PROXY": ""}
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for look in looks:
            here = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{server.server_port}", look)
            subprocess.run([sys.executable, "-c", here], env=environment, check=True)
        server.shutdown()


def test_a_dispatcher_that_traces_gets_opentelemetrys_variables(tmp_path, composed):
    assert "environment" not in services(tmp_path)["dispatcher"]
    traced = "gateway: {traces: true}\n"
    names = services(tmp_path, more=traced)["dispatcher"]["environment"]
    assert {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER"} <= set(names)
    for name, text in rendered(tmp_path, more=traced).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shown = composed(
        tmp_path / "compose.yaml", "config", OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4318"
    )
    assert "OTEL_EXPORTER_OTLP_ENDPOINT: http://collector:4318" in shown
    assert yaml.safe_load((tmp_path / "deployed.yaml").read_text())["gateway"]["traces"] is True


def test_a_gpu_is_a_profile_of_its_own(tmp_path, composed):
    changes = ("IMAGE", "x, gpu_image: x"), ("cores: 2,", "cores: 2, gpus: 1,")
    text = rendered(tmp_path, *changes)["compose.yaml"]
    gpu = yaml.safe_load(text)["services"]["gpu0"]
    assert gpu["profiles"] == ["gpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}
    assert "cpu_quota" not in gpu
    assert gpu["volumes"] == [
        {"type": "bind", "source": f"./{m}", "target": f"/{m}", "read_only": True}
        for m in ("models/a", "models/b")
    ]
    (tmp_path / "compose.yaml").write_text(text)
    composed(tmp_path / "compose.yaml", "config", "--quiet")


def test_the_engine_s_own_socket_is_where_the_broker_has_it(tmp_path):
    mine = "docker: {host: 'unix:///run/user$7/docker.sock', "
    written = rendered(tmp_path, ("docker: {", mine))
    volumes = yaml.safe_load(written["compose.yaml"])["services"]["broker"]["volumes"]
    source, target = "/run/user$$7/docker.sock", "/var/run/docker.sock"
    assert {"type": "bind", "source": source, "target": target} in volumes
    (tmp_path / "deployed.yaml").write_text(written["deployed.yaml"])
    docker = roma_config.load(tmp_path / "deployed.yaml").workers[0].containers
    assert docker.host == "unix:///var/run/docker.sock"


def test_the_host_s_cgroups_are_mounted_from_where_they_are(tmp_path):
    found = services(tmp_path, ("docker: {", "docker: {cgroup_root: /mnt/c, "))
    assert "/mnt/c:/host/cgroup:ro" in found["supervisor"]["volumes"]
    assert "/mnt/c:/host/cgroup" in found["broker"]["volumes"]


def test_only_the_broker_holds_the_engine_s_socket(tmp_path):
    found = services(tmp_path)
    holders = [n for n, s in found.items() if "docker.sock" in str(s["volumes"])]
    assert holders == ["broker"]
    assert found["broker"]["network_mode"] == "none"
    assert "--no-launcher" in found["broker"]["command"]
    for service in found.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("backend: docker", "backend: process", "absent for backend process"),
        ("image: IMAGE", "image: x, direct: true", "direct = true: must be false"),
        (
            "docker: {",
            "docker: {host: 'tcp://h:2376', tls: certs, address: h, ",
            r"docker\.host = tcp://h:2376: must be unix://",
        ),
        ("workers:", "gateway: {processes: 2}\nworkers:", "gateway.processes = 2: must be 1"),
        ("  a: {", "  broker: {", r"models\.broker: is the name of a service"),
        (
            "  - {name: host",
            "  - {name: other, backend: docker, cores: 2, base_port: 9900}\n  - {name: host",
            "workers = other, host: must be one",
        ),
    ],
)
def test_what_cannot_be_rendered_is_named(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message):
        rendered(tmp_path, (old, new))


def test_a_named_volume_stands_for_a_directory(tmp_path, composed):
    text = rendered(tmp_path, ("path: models/a", "volume: my-models"))["compose.yaml"]
    found = yaml.safe_load(text)
    assert found["services"]["a"]["volumes"] == ["my-models:/models/a:ro"]
    assert found["volumes"]["my-models"] == {"external": True}
    (tmp_path / "compose.yaml").write_text(text)
    composed(tmp_path / "compose.yaml", "config", "--quiet")


@pytest.mark.parametrize(("name", "project"), [("roma", []), ("My.shop-1", ["my_shop-1"])])
def test_deployments_of_other_names_are_other_projects(tmp_path, name, project):
    """Compose would name all those in directories `compose` alike, and replace one by the other."""
    settings = rendered(tmp_path, ("NAME", name))[".env"]
    assert re.findall(r"^COMPOSE_PROJECT_NAME=(.*)$", settings, re.MULTILINE) == project


def test_the_ports_of_the_file_are_published(tmp_path):
    ports = "gateway: {port: 7501, admin_port: 7500, grpc_port: 7502}\n"
    written = rendered(tmp_path, more=ports)
    expected = {"ROMA_PORT": 7501, "ROMA_GRPC_PORT": 7502, "ROMA_PAGE_PORT": 7500}
    assert {f"{name}={port}" for name, port in expected.items()} <= set(
        written[".env"].splitlines()
    )
    dispatcher = yaml.safe_load(written["compose.yaml"])["services"]["dispatcher"]
    published = [port.partition(":-127.0.0.1}:")[2] for port in dispatcher["ports"]]
    assert published == [f"${{{name}:-{port}}}:{port}" for name, port in expected.items()]


def test_the_page_may_have_the_port_that_prometheus_has_by_default(tmp_path):
    ports = "gateway: {port: 9091, admin_port: 9090}\n"
    settings = rendered(tmp_path, more=ports)[".env"].splitlines()
    assert {"ROMA_PAGE_PORT=9090", "ROMA_PROMETHEUS_PORT=9092"} <= set(settings)


def test_rendering_again_keeps_what_people_set(tmp_path):
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.replace("IMAGE", "x"))
    run = ["render", "compose", str(file), "--out", str(tmp_path)]
    assert CliRunner().invoke(app, run).exit_code == 0
    settings = tmp_path / ".env"
    assert "ROMA_PORT=8501\n" in settings.read_text()
    settings.write_text("ROMA_PORT=80\n")
    (tmp_path / "prometheus.yaml").unlink()
    assert CliRunner().invoke(app, run).exit_code == 0
    assert settings.read_text() == "ROMA_PORT=80\n"
    assert (tmp_path / "prometheus.yaml").exists()


def predict(url, model, token):
    request = urllib.request.Request(
        f"{url}/v1/models/{model}:predict",
        data=b'{"instances": [1]}',
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code


async def test_the_stack_comes_up_answers_moves_quotas_and_leaves_nothing(
    tmp_path, composed, control_image, worker_image, prometheus_image
):
    name = f"stack-{os.getpid()}"
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "b").mkdir()
    source = tmp_path / "roma.yaml"
    source.write_text(FILE.replace("NAME", name).replace("IMAGE", worker_image))
    render_again = ["render", "compose", str(source), "--out", str(tmp_path)]
    rendered = CliRunner().invoke(app, render_again)
    assert rendered.exit_code == 0, rendered.output
    token = (tmp_path / "secrets" / "client.token").read_text().strip()
    port, page, metrics = free_ports(3)
    settings = {
        "ROMA_CONTROL_IMAGE": control_image,
        "ROMA_PROMETHEUS_IMAGE": prometheus_image,
        "ROMA_PORT": str(port),
        "ROMA_PAGE_PORT": str(page),
        "ROMA_PROMETHEUS_PORT": str(metrics),
    }
    # All but Grafana, of which there is no image without a registry.
    services = ["a", "b", "dispatcher", "supervisor", "broker", "prometheus"]
    file, url = tmp_path / "compose.yaml", f"http://127.0.0.1:{port}"

    def quota(model):
        container = docker("inspect", "-f", "{{.Id}}", f"{name}-host-{model}")
        group = container_group(container_hierarchy(), container, 0.1)
        return group.read().cores

    async def until(condition):
        async with asyncio.timeout(90):
            while not condition():
                await asyncio.sleep(0.2)

    def asked(query):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": query})
        status, body = Up.get(f"http://127.0.0.1:{metrics}", path)
        assert status == 200, body
        return json.loads(body)["data"]["result"]

    try:
        composed(file, "-p", name, "up", "-d", *services, **settings)
        await until(lambda: Up.get(url, "/readyz")[0] == 200)
        await until(lambda: quota("a") == quota("b") == 0.1)  # idle: given back
        up = Up(source)
        up.url, up.authorization = url, f"Bearer {token}"
        # Names and loads are not for everybody who reaches the port.
        assert Up.get(f"http://127.0.0.1:{page}", "/")[0] == 401
        load = asyncio.create_task(up.load({"a": 30}, {"a": [b'{"instances": [1]}']}, 10))
        await until(lambda: quota("a") > 0.25)
        assert quota("b") == 0.1
        sent = (await load).total
        assert sent.failed == 0
        requests = 'sum(roma_requests_total{model="a"})'
        await until(lambda: asked(requests)[0]["value"][1] == str(sent.sent))
        # No GPU here, nothing answered in the last second, no law at work on an idle model.
        absent = ("roma_gpu", "roma_response_time", "roma_controller_term")
        for query in queries("a"):
            if not query.startswith(absent):
                await until(lambda query=query: asked(query))
        rules = json.loads(Up.get(f"http://127.0.0.1:{metrics}", "/api/v1/rules")[1])
        found = [rule for group in rules["data"]["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in found} == {"ok"}
        started = docker("inspect", "-f", "{{.State.StartedAt}}", f"{name}-host-b")
        assert predict(url, "c", token) == 404
        said = ["--path", str(tmp_path / "models" / "b"), "--response-time", "1", "--wait", "0"]
        assert CliRunner().invoke(app, ["models", "add", str(source), "c", *said]).exit_code == 0
        assert CliRunner().invoke(app, render_again).exit_code == 0
        composed(file, "-p", name, "up", "-d", "--no-deps", "c", **settings)
        for program in ("dispatcher", "supervisor", "broker"):
            told = ["exec", "-T", program, "sh", "-c", "kill -HUP 1"]
            composed(file, "-p", name, *told, **settings)
        await until(lambda: predict(url, "c", token) == 200)
        await until(lambda: quota("c") == 0.02)  # under control: idle, and given back
        assert docker("inspect", "-f", "{{.State.StartedAt}}", f"{name}-host-b") == started
        users = docker("exec", f"{name}_supervisor_1", "id", "-u")
        assert users == "10001"
    except Exception as error:  # whatever it is, what the stack said belongs to it
        error.add_note(composed(file, "-p", name, "logs", "--tail=30", **settings))
        raise
    finally:
        composed(file, "-p", name, "down", "--volumes", "--timeout", "10", **settings)
    assert docker("ps", "-aq", "--filter", f"name={name}") == ""
    assert docker("volume", "ls", "-q", "--filter", f"name={name}") == ""
    assert docker("network", "ls", "-q", "--filter", f"name={name}") == ""

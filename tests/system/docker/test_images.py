"""The images as they would be deployed: another user, nothing to write to, no tools to misuse."""

import json
import time
import urllib.request
from contextlib import contextmanager

import pytest

from roma.tools.demo import inputs
from tests.support.engine import docker, logs

LOCKED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(params=["control", "model_server"])
def image(request):
    return request.getfixturevalue(f"{request.param}_image")


def shell(image, command):
    return docker("run", "--rm", *LOCKED, "--entrypoint=sh", image, "-c", command)


def python(image, code):
    return docker("run", "--rm", *LOCKED, "--entrypoint=python", image, "-c", code)


def test_nobody_is_root(image):
    assert shell(image, "id -u; id -g") == "10001\n10001"
    assert shell(image, "find / -xdev -user roma -not -path '/proc/*' 2>/dev/null || true") == ""


def test_tools_of_the_build_stay_behind(image):
    found = shell(image, "command -v pip pip3 gcc cc; ls -d /opt/pip /in /root/.cache; true")
    assert found == ""


def test_it_is_the_command(image):
    assert "Usage: roma" in docker("run", "--rm", *LOCKED, image, "--help")


def test_it_says_what_it_is(image):
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.title"].startswith("ROMA")
    assert labels[f"{prefix}.version"] == python(
        image, "from importlib.metadata import version; print(version('roma-control-plane'))"
    )


def test_control_has_what_it_runs_and_no_tensorflow(control_image):
    for command in ("dispatcher", "supervisor", "up"):
        assert "Usage" in docker("run", "--rm", *LOCKED, control_image, command, "--help")
    code = (
        "import importlib.util, dispatcher.live.app, supervisor.live.app, roma.deploy.up\n"
        "print(importlib.util.find_spec('tensorflow'))"
    )
    assert python(control_image, code) == "None"


def test_model_server_explains_how_to_serve(model_server_image):
    assert "--model" in docker("run", "--rm", model_server_image, "serve-model", "--help")


@contextmanager
def serving(image, name, folder):
    """Serve one model as it would be deployed; yield the container and its URL."""
    container = docker(
        *("run", "--detach", *LOCKED, "--publish=127.0.0.1::8501"),
        *("--volume", f"{folder}:/models/{name}:ro", image),
        *("serve-model", "--host=0.0.0.0", f"--model={name}=/models/{name}"),
    )
    try:
        yield container, f"http://{docker('port', container, '8501/tcp')}/v1/models/{name}"
    finally:
        docker("rm", "--force", "--volumes", container)


def test_a_model_is_served_from_a_root_that_cannot_be_written(model_server_image, demo_models):
    with serving(model_server_image, "digits", demo_models["digits"]) as (container, url):
        wait_until_loaded(container, url)
        bodies = inputs.digits_held_out()[:50]
        answers = [inputs.predicted_class(post(f"{url}:predict", body)) for body, _ in bodies]
        right = sum(a == digit for a, (_, digit) in zip(answers, bodies, strict=True))
        assert right >= 45
        # SIGTERM reaches the server, which ends by itself: killed, it would say 137.
        docker("stop", "-t", "30", container)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", container) == "0"


def post(url, body):
    with urllib.request.urlopen(url, body, timeout=30) as answer:
        return answer.read()


def wait_until_loaded(container, url, limit=120):
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        running = docker("inspect", "--format", "{{.State.Running}}", container) == "true"
        assert running, logs(container)
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                (version,) = json.load(answer)["model_version_status"]
                if version["state"] == "AVAILABLE":
                    return
        except OSError:
            pass  # not listening yet, or no version yet
        time.sleep(0.2)
    raise AssertionError(f"not loaded within {limit} s:\n{logs(container)}")

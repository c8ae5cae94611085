"""A real engine, and images built from the working tree. Nothing here may fake either."""

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import engine as engines
from tests.support import host as hosts

SLOWEST = 900
"""Seconds: the first test of a session on a bare machine makes a base image and installs
TensorFlow, about six minutes; pytest-timeout counts that as the test's own time."""


def pytest_collection_modifyitems(items):
    for item in items:
        ours = item.path.is_relative_to(Path(__file__).parent)
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOWEST))


@pytest.fixture(scope="session")
def engine():
    """An engine that answers: the machine's, or one for this session alone."""
    with ExitStack() as stack:
        if not engines.available():
            _or_skip(stack.enter_context, engines.started())
        yield


@pytest.fixture(scope="session")
def base_image(engine):
    """A Debian with Python and nothing of ours."""
    return _or_skip(engines.base_image)


@pytest.fixture(scope="session")
def control_image(base_image):
    return _or_skip(engines.image, "control")


@pytest.fixture(scope="session")
def model_server_image(base_image):
    return _or_skip(engines.image, "model-server")


@pytest.fixture(scope="session")
def standin_image(base_image):
    """A model server with given service times (tests/support/standin.py)."""
    return engines.standin("standin", base_image)


@pytest.fixture(scope="session")
def worker_image(base_image):
    """A model server whose requests cost ten core-milliseconds."""
    return engines.standin("worker", base_image, WORK="0.01")


@pytest.fixture(scope="session")
def burner_image(base_image):
    """A container that uses all the cores it gets, up to two."""
    return engines.standin("burner", base_image, BURN="2")


@pytest.fixture(scope="session")
def prometheus_image(base_image):
    """Debian's Prometheus: no registry is reachable here."""
    return _or_skip(engines.prometheus, base_image)


@pytest.fixture(scope="session")
def _host():
    with ExitStack() as stack:
        yield _or_skip(stack.enter_context, hosts.host())


@pytest.fixture
def host(_host, worker_image):
    """An engine of our own on a host of its own, with an image whose requests cost 10 ms."""
    _host.start()
    _host.bring(worker_image)
    yield _host
    left = _host.clear()
    assert not left, f"left behind: {left}"


def _or_skip(make, *arguments):
    try:
        return make(*arguments)
    except engines.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _nothing_left_behind(engine):
    """A test removes the containers of its deployments, however they end."""
    before = _managed()
    yield
    left = _managed() - before
    if left:
        names = engines.docker("inspect", "--format", "{{.Name}}", *left)
        engines.docker("rm", "--force", "--volumes", *left)
        pytest.fail(f"left behind: {names}")


def _managed():
    """Ids of the containers of deployments, without those of other sessions on this engine."""
    answer = engines.docker(
        *("ps", "--all", "--no-trunc", "--filter", "label=roma.managed"),
        *("--format", '{{.ID}} {{.Label "roma.managed"}}'),
    )
    lines = (line.partition(" ") for line in answer.splitlines())
    return {container for container, _, name in lines if not _of_another_session(name)}


def _of_another_session(deployment):
    """Tests name a deployment after their process: `up-4711`."""
    pid = re.search(r"-(\d+)$", deployment)
    return pid is not None and pid[1] != str(os.getpid()) and Path("/proc", pid[1]).exists()

"""A real API server for all tests of this folder, and a real node for those that need one."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest

from roma.kubernetes.client import Client
from roma.kubernetes.credentials import find
from roma.kubernetes.watch import PodWatch
from roma.tools.demo import models
from supervisor.actuators.pods import PodActuator
from tests.support import kubernetes, node_host
from tests.support.cluster_models import CHECKOUT
from tests.support.pod_status import NoMeters
from tests.support.waiting import beside

SCRATCH = "/var/tmp"
"""Short, because a socket's path has 108 bytes; /tmp may be memory."""


_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))


def _need(programs):
    if missing := kubernetes.missing(programs):
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"{', '.join(missing)}: not in {kubernetes.PROGRAMS} (make kubernetes builds them)")


@pytest.fixture(scope="session")
def scratch():
    with tempfile.TemporaryDirectory(
        prefix="roma-k8s-", dir=SCRATCH, ignore_cleanup_errors=True
    ) as d:
        yield Path(d)


@pytest.fixture(scope="session")
def plane(scratch):
    """etcd, API server, scheduler and controllers."""
    _need(kubernetes.CONTROL_PLANE)
    with kubernetes.control_plane(scratch / "plane", controllers=True) as found:
        # Pods of a node that does not exist are removed.
        found.add_node("without-kubelet")
        yield found


@pytest.fixture
def namespace(plane):
    """A namespace of this test's own, in which pods can be made."""
    name = f"t-{next(_NUMBERS)}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    kubernetes.until(lambda: plane.has_account(name), "the namespace's service account")
    yield name
    plane.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
async def watched(plane, namespace):
    """A watch of the namespace with an administrator's rights."""
    client = Client(find(plane.kubeconfig(kubernetes.ADMIN, namespace)))
    watch = PodWatch(client, namespace, "model-server", labels="roma.dev/managed=true")
    async with beside(watch.run()):
        yield watch
    await client.close()


@pytest.fixture
async def acting(watched):
    """Makes actuators of the watched pods."""
    made = []

    def make(period=1.0):
        made.append(
            PodActuator(watched, NoMeters(), worker="w", container="model-server", period=period)
        )
        return made[-1]

    yield make
    for actuator in made:
        await actuator.close()


@pytest.fixture(scope="session")
def node(scratch, plane):
    """A node of containerd and kubelet, with a bridge network for its pods."""
    _need(kubernetes.NODE)
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("a kubelet needs root")
    with kubernetes.node(scratch / "node", plane) as found:
        for mount in node_host.cgroup_mounts():
            node_host.prefer(mount / found.cgroup)
        yield found


@pytest.fixture(scope="session")
def prepared():
    """The demo's models."""
    return models.prepare(CHECKOUT / ".cache", download=False)

"""A real API server for all tests of this folder, and a real node for those that need one."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest

from roma.tools.demo import models
from tests.support import kubernetes, node_host
from tests.support.cluster_models import CHECKOUT

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
        found.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "without-kubelet"}})
        room = {"cpu": "64", "memory": "64Gi", "pods": "500"}
        status = {"status": {"capacity": room, "allocatable": room}}
        kind = "application/merge-patch+json"
        path = "/api/v1/nodes/without-kubelet/status"
        assert found.call("PATCH", path, status, kind=kind)[0] == 200
        yield found


@pytest.fixture
def namespace(plane):
    """A namespace of this test's own, in which pods can be made."""
    name = f"t-{next(_NUMBERS)}"
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    kubernetes.until(lambda: plane.has_account(name), "the namespace's service account")
    yield name
    plane.call("DELETE", f"/api/v1/namespaces/{name}")


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

"""A real kubelet: limits reach the kernel, promises are kept, and faults lose no request."""

import asyncio
import json
import logging
import os
import random
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roma.kubernetes.quantity import millicores
from roma.tools.demo import inputs
from supervisor.actuators.kubelet_meters import KubeletMeters
from supervisor.cgroups import container_hierarchy
from tests.support.cluster_models import Controlled, deployment, idle_pod
from tests.support.waiting import until

SLAS = {"digits": 1.0, "photos": 3.0}
"""Seconds, and more than a shared machine stands still for."""


def containers(plane, namespace):
    """Return the ids of the containers of a namespace's pods, and their restarts, by pod."""
    found = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    states = {p["metadata"]["name"]: p["status"].get("containerStatuses", [{}])[0] for p in found}
    return {
        name: (s["containerID"].partition("://")[2], s["restartCount"])
        for name, s in states.items()
        if s.get("containerID")
    }


def running(plane, namespace):
    """Return the names of the pods that run and stay, each with its container's id, in order.

    A pod that was deleted is listed until its kubelet has cleaned up, its cgroup gone by then.
    """
    found = []
    for pod in plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        (status,) = pod["status"].get("containerStatuses") or [{}]
        if "running" in status.get("state", {}) and "deletionTimestamp" not in pod["metadata"]:
            found.append((pod["metadata"]["name"], status["containerID"].partition("://")[2]))
    return sorted(found)


def group(container):
    """Return the cgroup of a pod's container."""
    hierarchy = container_hierarchy()
    (found,) = hierarchy.roots[0].glob(f"*/kubepods/*/*/{container}")
    return hierarchy.group(str(found.relative_to(hierarchy.roots[0])), 0.1)


def quota(container):
    """Return the cores that the kernel grants a container."""
    return group(container).read().cores


async def test_every_change_reaches_the_kernel_and_restarts_nothing(
    plane, namespace, node, watched, acting
):
    acts = acting()
    names = [f"p{i}" for i in range(5)]
    pods = (idle_pod(name, "node-a") for name in names)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed(pods))
    await until(lambda: sum(p.is_served for p in watched.pods.values()) == 5)
    random_ = random.Random(1)
    wanted = {}

    def arrived(pod):
        cores, granted = wanted[f"{pod.name}@w"], pod.granted / 1000
        return pod.is_settled and abs(granted - cores) <= max(0.01, 0.01 * cores)

    for _ in range(10):
        wanted = {f"{name}@w": round(random_.uniform(0.05, 2.0), 3) for name in names}
        async with asyncio.timeout(60):
            await acts.apply(wanted)
            while not all(map(arrived, watched.pods.values())):
                await asyncio.sleep(0.5)
                await acts.apply(wanted)  # as at the next tick
        await acts.apply(wanted)
        ids = containers(plane, namespace)
        for name in names:
            granted = watched.pods[name].granted / 1000
            assert quota(ids[name][0]) == pytest.approx(granted, rel=0.05)
    assert {restarts for _, restarts in containers(plane, namespace).values()} == {0}


async def test_a_kubelet_that_is_killed_gets_the_limit_when_it_is_back(
    plane, namespace, node, watched, acting
):
    acts = acting()
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([idle_pod("p", "node-a")]))
    await until(lambda: "p" in watched.pods and watched.pods["p"].is_settled)
    node.programs["kubelet"].kill()
    try:
        assert await acts.apply({"p@w": 1.5}) in ({}, {"p@w": 0.5})
        assert watched.pods["p"].limit == 1500
        assert not watched.pods["p"].is_settled
    finally:
        node.programs["kubelet"].start()

    async def ticked():
        while not watched.pods["p"].is_settled:
            await acts.apply({"p@w": 1.5})
            await asyncio.sleep(0.5)

    await asyncio.wait_for(ticked(), 90)
    ((container, restarts),) = containers(plane, namespace).values()
    assert quota(container) == pytest.approx(1.5, abs=0.02)
    assert restarts == 0


async def test_the_use_of_servers_of_others_is_read_from_the_kubelet(
    plane, namespace, node, watched
):
    found = idle_pod("p", "node-a")
    (ours,) = found["spec"]["containers"]
    mounted = deployment("p", "/tmp/p")["spec"]["template"]["spec"]
    ours["command"] = ["sh", "-c", "while :; do :; done"]
    ours["volumeMounts"] = mounted["containers"][0]["volumeMounts"]
    found["spec"]["volumes"] = mounted["volumes"]
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([found]))
    await until(lambda: "p" in watched.pods and watched.pods["p"].is_settled)
    credentials = watched.client.credentials
    meters = KubeletMeters(
        credentials,
        ssl.create_default_context(cafile=node.ca),
        node=node.name,
        port=node.port,
        namespace=namespace,
        container="model-server",
        period=1.0,
    )
    readings = []
    try:
        while len(readings) < 3:
            if (reading := meters.read({"p@w": watched.pods["p"]})["p@w"]) is not None:
                readings.append((asyncio.get_running_loop().time() - reading.age, reading))
            await asyncio.sleep(1)
    finally:
        await meters.close()
    assert {r.cores for _, r in readings} == {0.5}
    (began, first), *_, (ended, last) = readings
    assert (last.usage - first.usage) / (ended - began) == pytest.approx(0.5, abs=0.15)


def _listed(objects):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture
def bodies(prepared):
    """Request bodies by model."""
    return {
        "digits": [body for body, _ in inputs.digits_held_out()],
        "photos": inputs.photo_bodies(8, seed=1),
    }


def described(names):
    return {
        name: {"sla": {"response_time": SLAS[name]}, "cpu": {"max": 1.5}, "max_waiting": 500}
        for name in names
    }


async def test_two_models_in_pods_keep_their_promises_under_a_stepping_load(
    plane, namespace, node, prepared, bodies, tmp_path
):
    found = [deployment(name, prepared[name].path) for name in SLAS]
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed(found))
    with Controlled(tmp_path, plane, namespace, described(SLAS)) as controlled:
        await controlled.until(lambda: controlled.ready(2))
        rates = {"digits": [20, 80, 40], "photos": [2, 6, 3]}
        await controlled.load({m: [r[0]] for m, r in rates.items()}, bodies, 8, SLAS)  # it learns
        report = await controlled.load(rates, bodies, 12, SLAS, seed=7)
        state = controlled.state()
    for model in report.models:
        broken = (model.late + model.rejected + model.failed) / model.sent
        assert model.failed == model.lost == 0, model
        assert broken < 0.2, model
    assert state["mode"] == "control"
    assert {e["failures"] for e in state["executables"].values()} == {0}
    assert all(e["changes"] > 3 for e in state["executables"].values())
    assert {restarts for _, restarts in containers(plane, namespace).values()} == {0}


async def test_faults_of_pods_under_load_lose_no_request(
    plane, namespace, node, prepared, bodies, tmp_path
):
    found = deployment("digits", prepared["digits"].path, replicas=2)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([found]))
    with Controlled(tmp_path, plane, namespace, described(["digits"])) as controlled:
        await controlled.until(lambda: controlled.ready(2))

        async def under(fault):
            load = controlled.load({"digits": [40]}, bodies, 12, SLAS)
            loading = asyncio.create_task(load)
            await asyncio.sleep(2)
            await asyncio.to_thread(fault)
            report = await loading
            await controlled.until(lambda: controlled.ready(2))
            assert report.total.lost == 0
            return report.total

        def delete():
            name, _ = running(plane, namespace)[0]
            plane.kubectl("delete", "pod", "-n", namespace, "--wait=false", name)

        def crash():
            _, container = running(plane, namespace)[0]
            for pid in group(container).pids():
                os.kill(pid, signal.SIGKILL)

        deleted = await under(delete)
        assert deleted.failed == 0, deleted
        crashed = await under(crash)
        assert crashed.failed <= 2, crashed  # those that it computed
        restarted = await under(lambda: _restart(node, "containerd"))
        assert restarted.failed == 0, restarted
        await under(lambda: _drain(plane))  # what comes meanwhile is refused, and then it serves


async def test_replicas_start_and_stop_without_a_lost_request(
    plane, namespace, node, prepared, bodies, tmp_path
):
    found = deployment("digits", prepared["digits"].path)
    found["metadata"]["name"] = "roma-model-digits"  # as rendered
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([found]))
    with Controlled(tmp_path, plane, namespace, described(["digits"])) as controlled:
        await controlled.until(lambda: controlled.ready(1))
        load = asyncio.create_task(controlled.load({"digits": [40]}, bodies, 40, SLAS))
        (said,) = await controlled.scale("digits", 2)
        assert said == "deployment roma-model-digits: replicas 1 -> 2"
        await controlled.until(lambda: controlled.ready(2))
        await asyncio.sleep(3)
        await controlled.scale("digits", 1)
        report = await load
        await controlled.until(lambda: len(containers(plane, namespace)) == 1)
    assert (report.total.failed, report.total.lost) == (0, 0), report.total
    assert {restarts for _, restarts in containers(plane, namespace).values()} == {0}


async def test_a_server_that_is_out_of_memory_costs_what_it_computed_and_one_restart(
    plane, namespace, node, prepared, bodies, tmp_path
):
    found = deployment("digits", prepared["digits"].path, replicas=2, memory="2Gi")
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([found]))
    with Controlled(tmp_path, plane, namespace, described(["digits"])) as controlled:
        await controlled.until(lambda: controlled.ready(2))
        before = containers(plane, namespace)
        victim = min(before)
        loading = asyncio.create_task(controlled.load({"digits": [40]}, bodies, 12, SLAS))
        await asyncio.sleep(2)
        await asyncio.to_thread(_exhaust, before[victim][0])
        report = await loading
        await controlled.until(lambda: containers(plane, namespace)[victim][1] >= 1)
        await controlled.until(lambda: controlled.ready(2))
        pods = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    (state,) = [
        p["status"]["containerStatuses"][0] for p in pods if p["metadata"]["name"] == victim
    ]
    assert state["lastState"]["terminated"]["reason"] == "OOMKilled"
    after = containers(plane, namespace)
    assert {name: restarts for name, (_, restarts) in after.items()} == {
        name: int(name == victim) for name in before
    }
    assert report.total.lost == 0
    assert report.total.failed <= 2, report.total


HOG = """
import sys
open("/proc/self/oom_score_adj", "w").write("-999")
sys.stdin.readline()
held = []
while True:
    # What it holds beyond the server's end, the server's next start would lack.
    try:
        if ") Z" in open("/proc/" + sys.argv[1] + "/stat").read():
            break
    except OSError:
        break
    held.append(b"x" * 2**24)
"""


def _exhaust(container):
    """Use up a container's memory from outside, until the kernel ends its server."""
    below = f"*/kubepods/*/*/{container}"
    first = [*Path("/sys/fs/cgroup/memory").glob(below), *Path("/sys/fs/cgroup").glob(below)]
    group_ = first[0]
    (server, *_) = [int(pid) for pid in (group_ / "cgroup.procs").read_text().split()]
    argv = [sys.executable, "-c", HOG, str(server)]
    hog = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        (group_ / "cgroup.procs").write_text(str(hog.pid))
        hog.stdin.write(b"now\n")
        hog.stdin.close()
        _gone(server)
    finally:
        hog.kill()
        hog.wait()


def _gone(pid, limit=60):
    """Wait until a process has ended."""
    ends = time.monotonic() + limit
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < ends, f"process {pid} is still there"
        time.sleep(0.02)


def _restart(node, name):
    node.programs[name].kill()
    node.programs[name].start()


def _drain(plane):
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
    plane.kubectl("drain", "node-a", *options)
    plane.kubectl("uncordon", "node-a")


async def test_of_two_supervisors_one_leads_and_the_other_goes_on_without_a_jump(
    plane, namespace, node, prepared, bodies, tmp_path
):
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "roma-supervisor", "namespace": namespace},
    }
    found = deployment("digits", prepared["digits"].path)
    plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=_listed([found, lease]))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/roma-supervisor"
    with Controlled(tmp_path, plane, namespace, described(["digits"]), supervisors=2) as controlled:
        await controlled.until(lambda: controlled.ready(1))
        loading = asyncio.create_task(controlled.load({"digits": [40]}, bodies, 20, SLAS))
        await asyncio.sleep(6)
        first = controlled.controls.index(_leader(plane, path))
        before = controlled.state(first)
        assert before["mode"] == "control"
        standby = controlled.get(f"{controlled.controls[1 - first]}/control/v1/state")
        assert standby["ticks"] >= before["ticks"]  # it is the leader's answer
        controlled.program(f"supervisor{first}").kill()
        clock = asyncio.get_running_loop().time
        killed = clock()
        other = controlled.controls[1 - first]
        was = _granted(plane, namespace)
        await controlled.until(lambda: _leader(plane, path) == other)
        await controlled.until(lambda: _begun(controlled, other) is not None)
        took = clock() - killed
        begun, after = _begun(controlled, other), controlled.state(1 - first)
        report = await loading
    assert report.total.failed == report.total.lost == 0
    assert after["mode"] == "control"
    assert begun == pytest.approx(was, abs=0.002)
    logging.getLogger(__name__).info("taken over in %.1f s", took)


def _begun(controlled, supervisor):
    """Return the cores with which a supervisor's law began, None before it has."""
    told = controlled.get(f"{supervisor}/control/v1/decisions?seconds=60") or {"decisions": []}
    measured = [d["measurement"] for d in told["decisions"] if d["measurement"]]
    return measured[0]["applied"] if measured else None


def _granted(plane, namespace):
    """Return the CPU limit of a namespace's only pod, in cores."""
    (pod,) = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    (container,) = pod["spec"]["containers"]
    return millicores(container["resources"]["limits"]["cpu"]) / 1000


def _leader(plane, path):
    return plane.get(path)["spec"]["holderIdentity"].partition("#")[0]

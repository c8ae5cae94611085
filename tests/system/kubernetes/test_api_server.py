"""A real API server: what is rendered is accepted, its rights suffice, and no verb more."""

import asyncio
import contextlib
import re
import subprocess

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.config.backends.registry import BACKENDS
from roma.config.schema import load
from roma.config.workers import BackendKind
from roma.kubernetes.client import ApiServerError, Client
from roma.kubernetes.credentials import find
from roma.kubernetes.lease import LeaderLease
from tests.support import kubernetes, pod_status
from tests.support.waiting import until

FILE = """
models:
  digits:
    sla: {{response_time: 0.1}}
    cpu: {{max: 1.5}}
    kubernetes: {{persistentVolumeClaim: models}}
workers:
  - {{name: node-a, backend: kubernetes, node: node-a, cores: 2, kubernetes: {{namespace: {namespace}}}}}
gateway: {{grpc_port: 9000}}
"""


@pytest.fixture
def rendered(tmp_path, namespace):
    """The rendered directory of a file, for a namespace."""
    file = tmp_path / "roma.yaml"
    file.write_text(FILE.format(namespace=namespace))
    out = tmp_path / "k8s"
    done = CliRunner().invoke(app, ["render", "kubernetes", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def described(name, limit="1", request="20m", node="without-kubelet"):
    """Return a pod whose node has no kubelet: nothing starts it."""
    resources = {"limits": {"cpu": limit}, "requests": {"cpu": request}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"roma.dev/managed": "true", "roma.dev/model": "digits"},
        },
        "spec": {
            "nodeName": node,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "model-server",
                    "image": "none",
                    "resources": resources,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def created(plane, namespace, *pods):
    for found in pods:
        status, answer = plane.call("POST", f"/api/v1/namespaces/{namespace}/pods", found)
        assert status == 201, answer


def runs(plane, namespace, name, granted=None, **status):
    """Be the kubelet of a pod: report what it would, also the limit in force."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    found = pod_status.running(plane.get(path), granted=granted, **status)
    kind = "application/merge-patch+json"
    code, answer = plane.call("PATCH", f"{path}/status", {"status": found}, kind=kind)
    assert code == 200, answer


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_the_api_server_accepts_all_that_is_rendered(plane, rendered, overlay):
    said = plane.kubectl("apply", "-k", rendered / "overlays" / overlay, "--dry-run=server")
    assert "statefulset.apps/roma-gateway" in said
    assert "lease.coordination.k8s.io/roma-supervisor" in said
    assert "Warning" not in said


def helm(rendered, namespace, *options):
    """Return the objects that helm makes of the chart."""
    values = rendered / "base" / "secrets" / "chart-values.yaml"
    chart = ["template", "roma", rendered / "chart", "--namespace", namespace]
    done = subprocess.run(
        [kubernetes.PROGRAMS / "helm", *chart, "--values", values, *options],
        check=True,
        capture_output=True,
        text=True,
    )
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def names(objects):
    """Return kinds and names, without the hashes that kustomize adds."""
    hashed = re.compile(r"-[a-z0-9]{10}$")
    return sorted(
        (o["kind"], hashed.sub("", o["metadata"]["name"]))
        for o in objects
        if o["kind"] != "Namespace"
    )


def test_helm_makes_the_same_objects_and_the_api_server_accepts_them(plane, rendered, namespace):
    ours = helm(rendered, namespace)
    overlay = plane.kubectl("kustomize", rendered / "overlays" / "production")
    assert names(ours) == names(yaml.safe_load_all(overlay))
    (config,) = [o for o in ours if o["kind"] == "ConfigMap"]
    assert config["data"]["roma.yaml"] == (rendered / "base" / "roma.yaml").read_text()
    text = yaml.safe_dump_all(ours)
    said = plane.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=text)
    assert "statefulset.apps/roma-gateway" in said
    assert "Warning" not in said


def test_helm_says_which_secret_is_missing(rendered):
    done = subprocess.run(
        [kubernetes.PROGRAMS / "helm", "template", "roma", rendered / "chart"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "give --values base/secrets/chart-values.yaml" in done.stderr


@pytest.fixture
def operator(plane):
    """The kinds of Prometheus' operator."""
    kinds = [
        kubernetes.PROGRAMS / "crds" / f"monitoring.coreos.com_{kind}.yaml"
        for kind in ("podmonitors", "prometheusrules")
    ]
    files = [f"--filename={kind}" for kind in kinds]
    plane.kubectl("create", *files)
    plane.kubectl("wait", "--for=condition=Established", *files, "--timeout=60s")
    yield
    plane.kubectl("delete", *files)


def test_the_monitoring_component_is_accepted_by_the_operators_kinds(
    plane, operator, rendered, namespace, tmp_path
):
    own = {
        "resources": ["k8s/overlays/production"],
        "components": ["k8s/components/monitoring"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    found = list(yaml.safe_load_all(plane.kubectl("kustomize", tmp_path)))
    (monitor,) = [o for o in found if o["kind"] == "PodMonitor"]
    secrets = {o["metadata"]["name"] for o in found if o["kind"] == "Secret"}
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    assert {e["authorization"]["credentials"]["name"] for e in endpoints} <= secrets
    said = plane.kubectl("apply", "-k", tmp_path, "--dry-run=server")
    for kind in ("podmonitor.monitoring.coreos.com", "prometheusrule.monitoring.coreos.com"):
        assert f"{kind}/roma created" in said
    ours = helm(rendered, namespace, "--set", "monitoring.enabled=true")
    assert names(ours) == names(found)
    text = yaml.safe_dump_all(o for o in ours if o["kind"] in ("PodMonitor", "PrometheusRule"))
    said = plane.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=text)
    assert "podmonitor.monitoring.coreos.com/roma created" in said


def test_what_is_rendered_is_restricted(plane, rendered, namespace):
    """The namespace enforces the standard, so pods that break it would never be made."""
    plane.kubectl("apply", "-k", rendered / "overlays" / "production")
    selector = f"/api/v1/namespaces/{namespace}/pods"

    def all_made():
        found = plane.get(selector)["items"]
        return len(found) >= 5 or None  # two gateways, two supervisors, one model server

    kubernetes.until(all_made, "pods of every workload", limit=60)
    events = plane.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    assert not [e["message"] for e in events if "violates PodSecurity" in e.get("message", "")]


def test_each_right_is_there_and_none_more(plane, rendered, namespace):
    plane.kubectl("apply", "-k", rendered / "overlays" / "production")
    created(plane, namespace, described("p"))
    runs(plane, namespace, "p")
    core, lease = f"/api/v1/namespaces/{namespace}", "/apis/coordination.k8s.io/v1/namespaces"
    leases = f"{lease}/{namespace}/leases"
    limits = {"limits": {"cpu": "700m"}}
    resize = {"spec": {"containers": [{"name": "model-server", "resources": limits}]}}
    merge = "application/strategic-merge-patch+json"
    accounts = {
        a: plane.token(namespace, a) for a in ("roma-gateway", "roma-supervisor", "default")
    }

    def asked(account, method, path, body=None):
        kind = merge if method == "PATCH" else "application/json"
        return plane.call(method, path, body, token=accounts[account], kind=kind)[0]

    held = plane.get(f"{leases}/roma-supervisor")
    held["spec"] = {"holderIdentity": "x"}
    allowed = {
        ("GET", f"{core}/pods"): {"roma-gateway", "roma-supervisor"},
        ("GET", f"{core}/pods/p"): {"roma-gateway", "roma-supervisor"},
        ("GET", f"{core}/pods?watch=1&timeoutSeconds=1"): {"roma-gateway", "roma-supervisor"},
        ("PATCH", f"{core}/pods/p/resize"): {"roma-supervisor"},
        ("GET", f"{core}/limitranges"): {"roma-supervisor"},
        ("GET", f"{leases}/roma-supervisor"): {"roma-supervisor"},
        ("PUT", f"{leases}/roma-supervisor"): {"roma-supervisor"},
    }
    refused = [
        ("PATCH", f"{core}/pods/p"),
        ("PATCH", f"{core}/pods/p/status"),
        ("DELETE", f"{core}/pods/p"),
        ("POST", f"{core}/pods"),
        ("POST", f"{core}/pods/p/exec"),
        ("GET", f"{core}/secrets"),
        ("GET", f"{core}/configmaps"),
        ("GET", f"{leases}/other"),
        ("DELETE", f"{leases}/roma-supervisor"),
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/namespaces"),
        ("GET", "/api/v1/namespaces/kube-system/pods"),
        ("PATCH", "/api/v1/namespaces/default/pods/p/resize"),
    ]
    bodies = {"PATCH": resize, "PUT": held, "POST": described("other")}
    for (method, path), who in allowed.items():
        for account in accounts:
            expected = 200 if account in who else 403
            body = bodies.get(method)
            if method == "PUT":
                body = {**held, "metadata": plane.get(path)["metadata"]}
            if "watch" in path and account in who:
                continue  # a stream, and the watch of the other tests
            assert asked(account, method, path, body) == expected, (account, method, path)
    made = {
        "apiVersion": held["apiVersion"],
        "kind": "Lease",
        "metadata": {"name": "roma-restored"},
    }
    for account in accounts:
        expected = 201 if account == "roma-supervisor" else 403
        assert asked(account, "POST", leases, made) == expected, account
    for method, path in refused:
        for account in accounts:
            assert asked(account, method, path, bodies.get(method)) == 403, (account, method, path)


async def test_nodes_are_workers_by_their_labels_with_the_rendered_rights(
    plane, namespace, tmp_path
):
    file, out = tmp_path / "roma.yaml", tmp_path / "k8s"
    text = FILE.format(namespace=namespace)
    file.write_text(text.replace("node: node-a", f"nodeSelector: {{pool: {namespace}}}"))
    done = CliRunner().invoke(app, ["render", "kubernetes", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    plane.kubectl("apply", "-k", out / "overlays" / "production")
    created(plane, namespace, described("p", node=f"other-{namespace}"))
    for account in ("roma-gateway", "roma-supervisor"):
        kubeconfig = plane.kubeconfig(plane.token(namespace, account), namespace)
        config = load(file)
        settings = config.workers[0].pods.model_copy(update={"kubeconfig": kubeconfig})
        entry = config.workers[0].model_copy(update={"kubernetes": settings})
        source = BACKENDS[BackendKind.KUBERNETES].source(config, entry)
        listed = contextlib.aclosing(source.lists())
        async with asyncio.timeout(60), listed as lists:
            assert await anext(lists) == ()
            plane.kubectl("label", "node", "without-kubelet", f"pool={namespace}")
            (found,) = await anext(lists)
            assert (found.name, found.entry, found.executables) == (
                "without-kubelet",
                "node-a",
                (),
            )
            plane.kubectl("label", "node", "without-kubelet", "pool-")
            assert await anext(lists) == ()


async def test_a_limit_moves_and_counts_once_the_status_shows_it(plane, namespace, watched, acting):
    created(plane, namespace, described("a"), described("b"))
    for name in "ab":
        runs(plane, namespace, name)
    await until(lambda: len(watched.pods) == 2 and all(p.is_settled for p in watched.pods.values()))
    acts = acting(period=0.6)
    assert await acts.apply({}) == {"a@w": 1.0, "b@w": 1.0}
    assert await acts.apply({"a@w": 0.25}) == {}  # no kubelet has seen it
    assert watched.pods["a"].limit == 250
    runs(plane, namespace, "a")
    await until(lambda: watched.pods["a"].is_settled)
    assert await acts.apply({}) == {"a@w": 0.25}
    before = watched.pods["b"].generation
    assert await acts.apply({"b@w": 1.0}) == {}
    assert watched.pods["b"].generation == before


@pytest.mark.parametrize(
    ("made", "wanted", "words"),
    [
        ({"limit": "1", "request": "1"}, 0.5, None),
        ({"limit": "1", "request": "20m"}, 3.0, "maximum cpu usage per Container is 2"),
    ],
)
async def test_what_the_api_server_refuses_is_told_in_its_words(
    plane, namespace, watched, acting, made, wanted, words
):
    bound = {"type": "Container", "max": {"cpu": "2"}, "defaultRequest": {"cpu": "20m"}}
    range_ = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "r", "namespace": namespace},
        "spec": {"limits": [bound]},
    }
    plane.apply(range_)
    created(plane, namespace, described("a", **made))
    runs(plane, namespace, "a")
    await until(lambda: "a" in watched.pods and watched.pods["a"].is_served)
    result = (await acting().apply({"a@w": wanted})).get("a@w")
    if words is None:  # below the request nothing is asked: it is a floor
        assert result == 1.0
    else:
        assert words in str(result)


async def test_a_quota_of_the_namespace_is_told_in_the_api_servers_words(
    plane, namespace, watched, acting
):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": namespace},
        "spec": {"hard": {"limits.cpu": "1500m"}},
    }
    plane.apply(quota)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/q"
    kubernetes.until(lambda: plane.get(path).get("status", {}).get("hard"), "an active quota")
    created(plane, namespace, described("a"))
    runs(plane, namespace, "a")
    await until(lambda: "a" in watched.pods and watched.pods["a"].is_served)
    actuator = acting()
    result = str((await actuator.apply({"a@w": 3.0})).get("a@w"))
    assert "exceeded quota: q" in result
    assert await actuator.apply({"a@w": 1.4}) in ({}, {"a@w": 1.0})
    await until(lambda: watched.pods["a"].limit == 1400)


async def test_the_lease_that_is_rendered_is_taken_and_given_back(plane, rendered, namespace):
    plane.kubectl("apply", "-k", rendered / "overlays" / "production", "--dry-run=none")
    token = plane.token(namespace, "roma-supervisor")
    client = Client(find(plane.kubeconfig(token, namespace)))
    first = LeaderLease(client, namespace, "roma-supervisor", "http://a:1")
    second = LeaderLease(client, namespace, "roma-supervisor", "http://b:1")
    await first.acquired()
    assert first.is_held
    waiting = asyncio.create_task(second.acquired())
    await until(lambda: second.leader == "http://a:1")
    assert not second.is_held
    plane.kubectl("delete", "lease", "roma-supervisor", "--namespace", namespace)
    assert await first._attempt(), "its holder makes it again"
    assert not await second._attempt()
    assert second.leader == "http://a:1"
    await first.release()
    await waiting
    assert second.is_held
    plane.kubectl("delete", "lease", "roma-supervisor", "--namespace", namespace)
    await first.acquired()  # its holder is gone, too
    assert not second.is_held
    await client.close()


async def test_an_api_server_that_is_killed_and_comes_back_loses_nothing(
    plane, namespace, watched, acting
):
    created(plane, namespace, described("a"))
    runs(plane, namespace, "a")
    await until(lambda: "a" in watched.pods and watched.pods["a"].is_settled)
    plane.programs["apiserver"].kill()
    await until(lambda: watched.away_since is not None)
    acts = acting()
    results = await acts.apply({"a@w": 0.25})
    assert "not reachable" in str(results["a@w"])
    plane.programs["apiserver"].start()
    await until(lambda: watched.away_since is None, 120)
    await acts.apply({"a@w": 0.25})
    await until(lambda: watched.pods["a"].limit == 250)


@pytest.mark.parametrize("token", ["an-expired-or-a-wrong-token", ""])
async def test_who_is_not_let_in_says_whose_credentials_they_were(plane, namespace, token):
    client = Client(find(plane.kubeconfig(token, namespace)))
    path = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(ApiServerError, match=r"status 40[13]: .*"):
        await client.get(path, 10)
    await client.close()


def test_the_file_that_the_pods_read_names_what_its_source_watches(plane, rendered, monkeypatch):
    """The rendered roma.yaml has no kubeconfig: in a pod it is the service account's."""
    config = load(rendered / "base" / "roma.yaml")
    (worker,) = config.workers
    assert worker.backend is BackendKind.KUBERNETES
    assert BACKENDS[worker.backend].executables(config, worker) == []
    assert yaml.safe_load((rendered / "base" / "roma.yaml").read_text())["workers"][0][
        "kubernetes"
    ] == {"lease": "roma-supervisor"}

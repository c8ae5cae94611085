"""The rendered programs in pods: the closed loop in a cluster, with its accounts and secrets.

Their image is replaced by this checkout, mounted from the machine. Without kube-proxy and DNS the
API server has another address, and the gateways' names stand in the supervisors' hosts file. All
else is as rendered.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from roma.cli.app import app
from roma.kubernetes.quantity import millicores
from roma.tools.demo import inputs
from tests.support import kubernetes
from tests.support.cluster_models import CHECKOUT, deployment

FILE = """
models:
  digits: {{sla: {{response_time: 0.15}}, kubernetes: {{hostPath: /nowhere}}}}
workers:
  - {{name: node-a, backend: kubernetes, node: node-a, cores: 2, kubernetes: {{namespace: {namespace}}}}}
"""


def replaced(workload, plane):
    """Return a rendered workload that runs this checkout."""
    mounted = deployment("digits", CHECKOUT / "x")["spec"]["template"]["spec"]
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {
        "image": kubernetes.SANDBOX,
        "imagePullPolicy": "Never",
        "command": [sys.executable, "-m", "roma"],
        "workingDir": str(CHECKOUT),
        "volumeMounts": container["volumeMounts"] + mounted["containers"][0]["volumeMounts"],
    }
    address = urlsplit(plane.url)
    container["env"] = [
        *container.get("env", ()),
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        {"name": "KUBERNETES_SERVICE_HOST", "value": address.hostname},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(address.port)},
    ]
    pod["volumes"] += mounted["volumes"]
    pod["nodeName"] = "node-a"
    return workload


def test_the_rendered_programs_serve_elect_a_leader_and_move_a_limit(
    plane, node, namespace, tmp_path
):
    file, out = tmp_path / "roma.yaml", tmp_path / "k8s"
    file.write_text(FILE.format(namespace=namespace))
    done = CliRunner().invoke(app, ["render", "kubernetes", str(file), "--out", str(out)])
    assert done.exit_code == 0, done.output
    manifests = list(yaml.safe_load_all(plane.kubectl("kustomize", out / "overlays" / "dev")))
    found = {(o["kind"], o["metadata"]["name"]): o for o in manifests}
    gateway = replaced(found.pop(("StatefulSet", "roma-gateway")), plane)
    supervisor = replaced(found.pop(("Deployment", "roma-supervisor")), plane)
    del found["Deployment", "roma-model-digits"]
    server = deployment("digits", CHECKOUT / ".cache" / "digits", limit="1500m")
    server["metadata"]["namespace"] = namespace

    def pods():
        return plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]

    def addresses(component):
        label = "app.kubernetes.io/component"
        return {
            p["metadata"]["name"]: p["status"].get("podIP")
            for p in pods()
            if p["metadata"]["labels"].get(label) == component
        }

    def wait(condition, what):
        try:
            return kubernetes.until(condition, what, limit=240)
        except AssertionError as error:
            shown = plane.kubectl("get", "pods", "-n", namespace, "-o", "wide")
            events = plane.kubectl("get", "events", "-n", namespace)[-3000:]
            raise AssertionError(f"{error}\n{shown}\n{events}\n{node.logs(namespace)}") from None

    plane.apply(*found.values(), gateway, server)
    wait(lambda: len(addresses("gateway")) == 2 and all(addresses("gateway").values()), "gateways")
    # What DNS would say: the headless Service's names.
    supervisor["spec"]["template"]["spec"]["hostAliases"] = [
        {"ip": ip, "hostnames": [f"{name}.roma-gateway-peers"]}
        for name, ip in addresses("gateway").items()
    ]
    plane.apply(supervisor)

    def all_ready():
        states = [p["status"].get("containerStatuses", [{}])[0] for p in pods()]
        return len(states) == 5 and all(s.get("ready") for s in states)

    wait(all_ready, "ready pods")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/roma-supervisor"
    leader = plane.get(path)["spec"]["holderIdentity"].partition("#")[0]
    assert leader in {f"http://{ip}:8502" for ip in addresses("supervisor").values()}

    key = (out / "base" / "secrets" / "client.token").read_text().strip()
    body, _ = inputs.digits_held_out()[0]
    for ip in addresses("gateway").values():
        call = urllib.request.Request(f"http://{ip}:8501/v1/models/digits:predict", data=body)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(call, timeout=10)
        call.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(call, timeout=10) as response:
            assert json.load(response)["predictions"]

    at = ["--kube-context=test", f"--config={file}"]
    token = f"--token-file={out / 'base' / 'secrets' / 'admin' / 'token'}"
    environment = {
        "KUBECONFIG": str(plane.kubeconfig(kubernetes.ADMIN)),
        "PATH": f"{kubernetes.PROGRAMS}:{os.environ['PATH']}",
    }
    done = CliRunner().invoke(app, ["status", *at, token, "--json"], env=environment)
    assert done.exit_code == 0, (done.output, done.exception)
    assert [row["model"] for row in json.loads(done.output)["models"]] == ["digits"]
    done = CliRunner().invoke(app, ["status", *at], env=environment)
    assert "asks for its token" in str(done.exception)

    def limit():
        (pod,) = [p for p in pods() if "roma.dev/model" in p["metadata"]["labels"]]
        return millicores(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"])

    wait(lambda: limit() < 200, "a limit that follows the load, which is none")
    restarts = [p["status"]["containerStatuses"][0]["restartCount"] for p in pods()]
    assert restarts == [0] * 5

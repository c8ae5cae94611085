"""Real model servers in pods of a test node, and a dispatcher and a supervisor that find them.

The pods run this checkout with this Python, mounted from the machine: an image with TensorFlow
would take minutes to make.
"""

import asyncio
import contextlib
import json
import sys
import urllib.request
from pathlib import Path

from roma.config import schema
from roma.deploy.replicas import scaler
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream, run_load
from roma.workload.arrivals import Profile, RateStep, poisson
from tests.support.deployment import CHECKOUT, Program
from tests.support.kubernetes import ADMIN, SANDBOX

MOUNTED = (
    *("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", sys.base_prefix),
    *(str(CHECKOUT), str(Path(sys.prefix).resolve())),  # .venv may be a link
)


def deployment(
    name, directory, *, replicas=1, node="node-a", limit="1", request="20m", memory=None
):
    """Return a Deployment of model servers for one model."""
    labels = {"roma.dev/managed": "true", "roma.dev/model": name}
    mounted = sorted({*MOUNTED, str(Path(directory).parent)})
    mounted = [m for m in mounted if Path(m).exists()]
    container = {
        "name": "model-server",
        "image": SANDBOX,
        "command": [
            sys.executable,
            *("-m", "roma", "serve-model", f"--model={name}={directory}"),
            *("--host=0.0.0.0", "--port=8501"),
        ],
        "workingDir": str(CHECKOUT),
        "env": [
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"},
        ],
        "resources": {"limits": {"cpu": limit}, "requests": {"cpu": request}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
        "readinessProbe": {
            "httpGet": {"path": f"/v2/models/{name}/ready", "port": 8501},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
        "volumeMounts": [
            {"name": f"v{i}", "mountPath": path, "readOnly": True} for i, path in enumerate(mounted)
        ],
    }
    if memory is not None:
        container["resources"]["limits"]["memory"] = memory
    volumes = [{"name": f"v{i}", "hostPath": {"path": path}} for i, path in enumerate(mounted)]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeName": node,
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 10,
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def idle_pod(name, node, *, model="m", image=SANDBOX):
    """Return a pod that computes nothing."""
    resources = {"limits": {"cpu": "500m"}, "requests": {"cpu": "20m"}}
    labels = {"roma.dev/managed": "true", "roma.dev/model": model}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "model-server", "image": image, "resources": resources}],
        },
    }


class Controlled:
    """A dispatcher and `supervisors` supervisors for the pods of a namespace."""

    def __init__(self, directory, plane, namespace, models, *, cores=2.0, supervisors=1):
        port, admin, *control = free_ports(2 + supervisors)
        self._plane, self._namespace = plane, namespace
        kubeconfig = plane.kubeconfig(ADMIN, namespace)
        lease = "roma-supervisor" if supervisors > 1 else None
        settings = {"namespace": namespace, "kubeconfig": str(kubeconfig)}
        worker = {"name": "node-a", "backend": "kubernetes", "node": "node-a", "cores": cores}
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        self._programs = {}
        for i in range(supervisors):
            file = directory / f"roma{i}.yaml"
            content = {
                "models": models,
                "workers": [
                    {**worker, "kubernetes": settings | ({} if lease is None else {"lease": lease})}
                ],
                "gateway": {"port": port, "admin_port": admin},
                "control": {"port": control[i], "dispatchers": [self.admin]},
            }
            file.write_text(json.dumps(content))
            if i == 0:
                self._file = file
                log = directory / "dispatcher.log"
                self._programs["dispatcher"] = Program(["roma", "dispatcher", file], log)
            log = directory / f"supervisor{i}.log"
            self._programs[f"supervisor{i}"] = Program(["roma", "supervisor", file], log)
        self.controls = [f"http://127.0.0.1:{p}" for p in control]

    def __enter__(self):
        for program in self._programs.values():
            program.start()
        return self

    def __exit__(self, *_):
        for program in self._programs.values():
            program.kill()

    def _pods(self):
        selector = ("-n", self._namespace, "-l", "roma.dev/managed=true")
        return self._plane.kubectl("describe", "pods", *selector)

    async def scale(self, model, count):
        """Give a model so many pods; return what was done."""
        found = scaler(self._file, schema.load(self._file))
        return await found.carry_out(await found.commands(model, count))

    def program(self, name):
        return self._programs[name]

    def get(self, url):
        """Return the JSON at a URL; None while it does not answer."""
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
            return json.load(response)
        return None

    def state(self, supervisor=0):
        """Return a supervisor's state."""
        return self.get(f"{self.controls[supervisor]}/control/v1/state") or {}

    def ready(self, count):
        """Return whether so many executables serve."""
        found = self.get(f"{self.admin}/control/v1/report") or {}
        return sum(e["state"] in ("idle", "busy") for e in found.get("executors", ())) >= count

    async def until(self, condition, limit=120.0):
        """Wait for a condition; say what the programs said if it does not come."""
        try:
            async with asyncio.timeout(limit):
                while not await asyncio.to_thread(condition):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            said = "\n".join(
                f"{n}:\n{p.log.read_text()[-3000:]}" for n, p in self._programs.items()
            )
            states = [self.state(i) for i in range(len(self.controls))]
            raise AssertionError(f"{states}\n{said}\n{self._pods()}") from None

    async def load(self, rates, bodies, seconds, slas, *, seed=1):
        """Send Poisson load; `rates` has the req/s of each step, by model."""
        streams = [
            Stream(
                name,
                poisson(Profile(tuple(RateStep(r, seconds) for r in steps)), seed=seed + i),
                bodies[name],
                slas[name],
            )
            for i, (name, steps) in enumerate(rates.items())
        ]
        return await run_load(streams, self.url, timeout=10)

"""A real supervisor with 200 pods on 20 nodes; the rest of that cluster is one program.

This program is the kubelets, which repeat every limit as status, the model servers, which report
the CPU time that requests cost, and the dispatcher, whose models get other rates every second: each
limit changes at each tick. The API server is a real one.
"""

import asyncio
import json
import multiprocessing
import os
import random
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families as parsed

from roma.domain.exchange import REPLY, ExchangeReply, ExecutorReport, ModelReport
from roma.kubernetes.client import Client
from roma.kubernetes.credentials import find
from roma.kubernetes.pods import CPU_PATH
from roma.tools.demo.ports import free_ports
from tests.support import kubernetes, pod_status
from tests.support.cluster_models import idle_pod
from tests.support.deployment import Program

NODES, PER_NODE = 20, 10
MODELS = [f"m{i:02}" for i in range(NODES)]
"""The model of each node."""
COST = 0.02
"""Core-seconds of a request."""
RATES = (20.0, 400.0)
"""Requests per second of a model: a tenth of a core to two cores for the pod."""
WARM_UP = 20
"""Seconds in which laws learn the cost of a request."""


def _node(i):
    return f"many-{i:02}"


class Rest:
    """The rest of the cluster."""

    def __init__(self, kubeconfig):
        self._client = Client(find(kubeconfig))
        self._calls = asyncio.Semaphore(16)
        self._random = random.Random(3)
        self._seen, self._tasks = set(), set()
        self._limits = {}
        """Cores by the address of a pod."""
        self._done = Counter()
        """Requests by model."""
        self._began = time.monotonic()
        self._until = 0
        self._reply = b""
        self.changes = 0

    async def run(self, port, model_port):
        """Serve until the process is killed."""
        for at, routes in (
            (
                ("127.0.0.1", port),
                {
                    "/control/v1/report": self._report,
                    "/control/v1/needs": self._need,
                    "/changes": self._changes,
                },
            ),
            (("0.0.0.0", model_port), {CPU_PATH: self._cpu}),
        ):
            app = web.Application()
            for path, handler in routes.items():
                app.router.add_get(path, handler)
            app.router.add_post("/control/v1/applied", self._applied)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, *at).start()
        await self._be_kubelets()

    async def _be_kubelets(self):
        path = f"/api/v1/namespaces/{self._client.credentials.namespace}/pods"
        while True:  # the server ends a watch from time to time
            listed = await self._client.get(path, 10)
            for pod in listed["items"]:
                self._follow(path, pod)
            version = listed["metadata"]["resourceVersion"]
            async for event in self._client.watch(path, lambda: None, resourceVersion=version):
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._follow(path, event["object"])

    def _follow(self, path, pod):
        """Repeat the limit of a pod, once for each of its generations."""
        key = pod["metadata"]["name"], pod["metadata"]["generation"]
        if key not in self._seen and key[0][:3] in MODELS:
            self._seen.add(key)
            task = asyncio.create_task(self._repeat(path, pod))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _repeat(self, path, pod):
        meta = pod["metadata"]
        model, _, j = meta["name"].partition("-")
        ip = f"127.1.{int(model[1:])}.{int(j) + 1}"
        status = {"status": pod_status.running(pod, ip=ip)}
        async with self._calls:
            await self._client.patch(f"{path}/{meta['name']}/status", status, 10)
        cpu = pod["spec"]["containers"][0]["resources"]["limits"]["cpu"]
        self._limits[ip] = int(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
        self.changes += meta["generation"] > 1

    def _go_on(self):
        """Let the requests come that are due: at a new rate in each second."""
        while self._until < time.monotonic() - self._began:
            self._until += 1
            rate = RATES[self._until % 2]
            for model in MODELS:
                self._done[model] += round(rate * self._random.uniform(0.7, 1.3))
            self._reply = self._counted()

    def _counted(self):
        models = [
            ModelReport(m, n, n, 0, 0, 0, 0, 0, {}, 0, 0, 0.0, 0.05, 0.05)
            for m, n in ((m, self._done[m]) for m in MODELS)
        ]
        executors = [
            ExecutorReport(f"{m}-{j}@{_node(i)}", "busy", 1, self._done[m] // PER_NODE)
            for i, m in enumerate(MODELS)
            for j in range(PER_NODE)
        ]
        return REPLY.dump_json(ExchangeReply("1", tuple(models), tuple(executors)))

    async def _report(self, _):
        self._go_on()
        return web.Response(body=self._reply, content_type="application/json")

    async def _need(self, _):
        await asyncio.sleep(20)
        return web.Response(status=204)

    async def _applied(self, request):
        await request.read()
        return web.Response(status=204)

    async def _changes(self, _):
        return web.json_response(self.changes)

    async def _cpu(self, request):
        ip = request.transport.get_extra_info("sockname")[0]
        used = COST * self._done[MODELS[int(ip.split(".")[2])]] / PER_NODE
        periods = round(10 * (time.monotonic() - self._began))
        reading = {"cores": self._limits.get(ip), "usage": used, "periods": periods}
        return web.json_response(reading | {"throttled": 0, "burst": 0.0})


def _be_the_rest(kubeconfig, port, model_port):
    async def run():
        await Rest(kubeconfig).run(port, model_port)

    asyncio.run(run())


@dataclass(frozen=True)
class Figures:
    """Figures of a supervisor over so many seconds; `cores` is its CPU."""

    seconds: float
    cores: float
    changes: int
    ticks: int
    missed: int
    failures: int


@contextmanager
def _running(plane, directory):
    """Run both programs; yield the supervisor, its port and the other program's."""
    for i in range(NODES):
        name, model = _node(i), MODELS[i]
        plane.add_node(name, {"roma.dev/many": "yes"})
        pods = (idle_pod(f"{model}-{j}", name, model=model, image="none") for j in range(PER_NODE))
        plane.apply(*pods)
    port, model_port, control, gateway, admin = free_ports(5)
    kubeconfig = plane.kubeconfig(kubernetes.ADMIN)
    worker = {
        "name": "many",
        "backend": "kubernetes",
        "nodeSelector": {"roma.dev/many": "yes"},
        "cores": 2 * PER_NODE,
        "kubernetes": {"kubeconfig": str(kubeconfig), "port": model_port},
    }
    promise = {"sla": {"response_time": 0.2}, "cpu": {"max": 2}}
    file = directory / "many.yaml"
    file.write_text(
        json.dumps(
            {
                "models": dict.fromkeys(MODELS, promise),
                "workers": [worker],
                "gateway": {"port": gateway, "admin_port": admin},
                "control": {"port": control, "dispatchers": [f"http://127.0.0.1:{port}"]},
            }
        )
    )
    rest = multiprocessing.get_context("spawn").Process(
        target=_be_the_rest, args=(kubeconfig, port, model_port), daemon=True
    )
    supervisor = Program(["roma", "supervisor", file], directory / "many.log")
    rest.start()
    supervisor.start()
    try:
        yield supervisor, control, port
    finally:
        supervisor.kill()
        rest.kill()


def measure(plane, directory, seconds):
    """Return the figures of a supervisor with the default law, once it knows its pods."""
    with _running(plane, directory) as (supervisor, control, port):
        deadline = time.monotonic() + 120
        while _numbers(control, "roma_cores_applied") != NODES * PER_NODE:
            assert time.monotonic() < deadline, supervisor.log.read_text()[-3000:]
            time.sleep(0.5)
        time.sleep(WARM_UP)
        changes, spent, before = _changes(port), _cpu_of(supervisor), _totals(control)
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        cores = (_cpu_of(supervisor) - spent) / took
        done = {name: total - before[name] for name, total in _totals(control).items()}
        return Figures(took, cores, _changes(port) - changes, **done)


COUNTED = {
    "ticks": "roma_ticks_total",
    "missed": "roma_ticks_missed_total",
    "failures": "roma_actuation_failures_total",
}


def _totals(port):
    samples = _samples(port)
    return {
        field: round(sum(s.value for s in samples if s.name == name))
        for field, name in COUNTED.items()
    }


def _numbers(port, name):
    """Return how many series of this name there are; none until the port answers."""
    with suppress(OSError):
        return sum(sample.name == name for sample in _samples(port))
    return 0


def _samples(port):
    return [s for family in parsed(_fetch(port, "metrics")) for s in family.samples]


def _changes(port):
    return json.loads(_fetch(port, "changes"))


def _fetch(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        return answer.read().decode()


def _cpu_of(program):
    """Return the CPU time that a program has used, in seconds."""
    fields = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

"""A real HorizontalPodAutoscaler above our control of cores: the two loops do not fight.

HPA follows the external metric that docs/howto/kubernetes.md describes, and our supervisor moves
the limits of the pods that HPA adds and removes. API server with its aggregator, controllers,
kubelet, Prometheus, dispatcher and supervisor are real. Two things stand in: the model server, for
a request of a known cost, and prometheus-adapter. HPA decides every 3 s instead of 15, and takes
replicas away after 12 s instead of 300.
"""

import asyncio
import contextlib
import re
import shutil
import sys

import pytest
import yaml

from roma.tools.demo.ports import free_ports
from roma.tools.load import RequestEnd, Stream, run_load
from roma.tools.load.outcomes import CANCELLED
from roma.workload.arrivals import Profile, RateStep, poisson
from tests.support.cluster_models import CHECKOUT, Controlled, deployment
from tests.support.external_metrics import Adapter
from tests.support.kubernetes import address
from tests.support.prometheus import Prometheus

SLA, COST, CORES = 3.0, 0.02, 0.2
"""Seconds promised; core-seconds of a request; the most cores of a pod."""

BUSY, QUIET = 15, 3
"""Requests/s: more than a pod can answer with all its cores, and so few that one is enough."""

LOADS = 4
"""Seconds until a new pod serves: longer than from one of HPA's decisions to the next."""

TARGET, TOLERANCE = 0.7, 0.1
"""Of HPA: the documented target, and how far from it is near enough."""

WINDOW = 12
"""Seconds of HPA's memory: it takes away no more than its highest wish of that time allows."""

DECISIONS = 5
"""Of HPA, without a change: it has settled. They take longer than its memory."""


def documented(kind):
    """Return the YAML block of the documentation that contains a word."""
    text = (CHECKOUT / "docs" / "howto" / "kubernetes.md").read_text()
    (found,) = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if kind in b]
    return found


class Autoscaled:
    """A model under HPA.

    `path` are its numbers of replicas and `answers` the values of the metric, in order: HPA asks
    once for each decision.
    """

    def __init__(self, plane, namespace, controlled, answers):
        self.controlled, self.answers = controlled, answers
        self._plane, self._namespace = plane, namespace
        self._since = 0
        self._results = []
        self.path = []

    async def follow(self):
        """Note the numbers of replicas until cancelled."""
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments/roma-model-digits"
        while True:
            found = await asyncio.to_thread(self._plane.get, path)
            count = found["spec"]["replicas"]
            if self.path[-1:] != [count]:
                self.path.append(count)
                self._since = len(self.answers)
                self._results.clear()
            await asyncio.sleep(0.2)

    def has_settled(self):
        """Return whether nothing has changed for some decisions, and since then promises are kept.

        A machine that stands still may cost a replica for a while; a fight would go on.
        """
        decided = len(self.answers) - self._since
        enough = self.answers[-1] <= TARGET * (1 + TOLERANCE)
        ready = self.controlled.ready(self.path[-1])
        return decided >= DECISIONS and enough and ready and self._keeps()

    def _keeps(self):
        late = [
            r
            for r in self._results
            if r.outcome is not RequestEnd.ANSWERED or r.response_time > SLA
        ]
        return len(late) < 0.1 * len(self._results)

    async def under(self, rate, condition):
        """Send load until a condition holds; return what came of all requests."""
        runs = []
        self._results.clear()
        arrivals = poisson(Profile((RateStep(rate, 600),)), seed=1)
        load = asyncio.create_task(
            run_load(
                [Stream("digits", arrivals, [b'{"instances": [1]}'], SLA)],
                self.controlled.url,
                timeout=10,
                on_result=self._results.append,
                on_start=runs.append,
            )
        )
        await self.controlled.until(condition, limit=240)
        runs[0].stop()
        return (await load).total


@contextlib.asynccontextmanager
async def autoscaled(plane, namespace, directory):
    """Run one replica of a model under HPA."""
    pods = deployment("digits", directory, limit=f"{CORES:g}")
    pods["metadata"]["name"] = "roma-model-digits"  # as rendered
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    container["command"] = [sys.executable, "-m", "tests.support.metered_standin"]
    environment = {"WORK": COST, "LOADS": LOADS}
    container["env"] += [{"name": n, "value": f"{v:g}"} for n, v in environment.items()]
    scaler = documented("HorizontalPodAutoscaler").replace("models}", f"{namespace}}}")
    scaler = yaml.safe_load(scaler)
    scaler["metadata"]["namespace"] = pods["metadata"]["namespace"] = namespace
    scaler["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": WINDOW}}
    models = {"digits": {"sla": {"response_time": SLA}, "cpu": {"max": CORES}, "max_waiting": 500}}
    async with contextlib.AsyncExitStack() as stack:
        controlled = stack.enter_context(Controlled(directory, plane, namespace, models))
        urls = {"dispatcher": controlled.admin, "supervisor": controlled.controls[0]}
        targets = {job: url.removeprefix("http://") for job, url in urls.items()}
        prometheus = Prometheus(directory, targets, *free_ports(1), {"namespace": namespace})
        stack.enter_context(prometheus)
        rules = yaml.safe_load(documented("externalRules"))["externalRules"]
        adapter = Adapter(rules, prometheus, address())
        await stack.enter_async_context(adapter.running())
        plane.apply(*adapter.objects(), pods)
        # One that does not answer would hold up the end of every namespace.
        stack.callback(plane.kubectl, "delete", "apiservice", adapter.service)
        await controlled.until(lambda: controlled.ready(1) and _is_idle(controlled))
        plane.apply(scaler)
        found = Autoscaled(plane, namespace, controlled, adapter.answers)
        following = asyncio.create_task(found.follow())
        stack.callback(following.cancel)
        await controlled.until(lambda: adapter.answers)
        yield found


def _is_idle(controlled):
    """Return whether the first replica has given back the cores with which it started."""
    found = controlled.state().get("executables", {})
    return found and all((e["demand"] or CORES) < CORES / 2 for e in found.values())


@pytest.mark.timeout(600)
async def test_replicas_settle_under_load_and_after_it_without_a_lost_request(
    plane, namespace, node, tmp_path
):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    async with autoscaled(plane, namespace, tmp_path) as model:
        assert model.path == [1]
        assert max(model.answers) < TARGET, model.answers
        busy = await model.under(BUSY, lambda: model.path[-1] > 1 and model.has_settled())
        needed, many = max(model.answers), model.path[-1]
        quiet = await model.under(QUIET, lambda: model.path[-1] < many and model.has_settled())
        executables = model.controlled.state()["executables"].values()
        pods = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert len(model.path) <= 8, model.path
    assert needed > TARGET * (1 + TOLERANCE), model.answers
    for total in (busy, quiet):
        assert total.sent == total.answered + total.rejected + total.failed, total
        assert total.failed == total.reasons.get(CANCELLED, 0), total  # those of the end
    assert all(e["changes"] > 3 and not e["failures"] for e in executables)
    assert {p["status"]["containerStatuses"][0]["restartCount"] for p in pods} == {0}

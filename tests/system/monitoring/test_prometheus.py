"""A real Prometheus beside a real dispatcher and control loop: what it adds up is what clients saw."""

import asyncio
import contextlib
import functools
import shutil

import pytest
from aiohttp import ClientSession, web

from dispatcher.live import app as dispatcher_app
from roma.config import schema
from roma.deploy import alerts
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream, run_load
from supervisor.assembly import build_core
from supervisor.executables import Reading
from supervisor.live import api
from supervisor.live.gpus import GpuReading
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer
from tests.protocol.gateway.conftest import FakeModelServer
from tests.support.prometheus import Prometheus, queries

SLA, PERIOD = 0.15, 0.2

FILE = """
models:
  a.1: &model
    sla: {{response_time: {sla}, deadline: 0.6}}
    cpu: {{max: 2, initial: 1}}
    max_waiting: 5
  b: *model
workers:
  - name: w
    backend: static
    cores: 4
    executables:
      - {{url: 'http://127.0.0.1:{ports[0]}', model: a.1, cgroup: roma/a}}
      - {{url: 'http://127.0.0.1:{ports[1]}', model: b, cgroup: roma/b}}
      - {{url: 'http://127.0.0.1:{ports[2]}', device: gpu}}
gateway: {{port: {ports[3]}, admin_port: {ports[4]}, drain_timeout: 5}}
control: {{period: {period}}}
"""

MODELS = "a.1", "b"  # a dot is what Grafana escapes

SENT, RATE = 400, 50
BODIES = {3: b"bad", 8: b"broken", 13: b"slow"}
MAY_HANG = range(150, 300)


def body(index):
    return b"may hang" if index in MAY_HANG else BODIES.get(index % 20, b"good")


def behaviour():
    """Return how servers answer: as the body says; one of each model's requests hangs.

    It hangs for longer than a client waits. The servers choose which one: any may be refused before
    it reaches a server, and any server may be one that it does not reach.
    """
    hangs = dict.fromkeys(MODELS, 4.0)

    async def behave(request, body):
        delay = {b"slow": 0.4}.get(body, 0.01)
        if body == b"may hang":
            delay = hangs.pop(request.path.split("/")[3].partition(":")[0], delay)
        await asyncio.sleep(delay)
        return web.Response(status={b"bad": 400, b"broken": 500}.get(body, 200), body=b"{}")

    return behave


class Kernel:
    """Quotas and counters of executables that use half a core each."""

    def __init__(self, names):
        self.cores = dict.fromkeys(names, 1.0)
        self.periods = 0

    async def read(self):
        self.periods += 2
        return {
            name: Reading(cores, self.periods / 20, self.periods, self.periods // 4)
            for name, cores in self.cores.items()
        }

    async def apply(self, cores):
        self.cores |= cores
        return dict(cores)


class OneGpu:
    def read(self):
        return (GpuReading(0, "a GPU", 0.5, 1 << 30, 2 << 30),)


@pytest.fixture
async def deployment(tmp_path):
    """A dispatcher before three model servers, a control loop, and a Prometheus that reads both."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    *ports, supervisor, metrics = free_ports(7)
    loaded = schema.parse(FILE.format(sla=SLA, ports=ports, period=PERIOD))
    admin = f"http://127.0.0.1:{ports[4]}"
    async with contextlib.AsyncExitStack() as stack:
        behave = behaviour()
        for port in ports[:3]:
            server = FakeModelServer(port)
            server.behave = behave
            await stack.enter_async_context(server)
        await stack.enter_async_context(dispatcher_app.running(loaded))
        session = await stack.enter_async_context(ClientSession())
        core = build_core(loaded, loaded.workers[0])
        peer = Peer(session, admin, PERIOD)
        loop = ControlLoop(core, Kernel(core.status), [peer], worker="w", period=PERIOD)
        runner = web.AppRunner(
            api.application(lambda: [api.Controlled(loop, lambda: "control")], OneGpu())
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", supervisor).start()
        ticking = asyncio.create_task(loop.run())
        stack.callback(ticking.cancel)
        targets = {"dispatcher": f"127.0.0.1:{ports[4]}", "supervisor": f"127.0.0.1:{supervisor}"}
        prometheus = stack.enter_context(Prometheus(tmp_path, targets, metrics))
        yield f"http://127.0.0.1:{ports[3]}", prometheus, session


async def until(condition, limit=30):
    async with asyncio.timeout(limit):
        while not await condition():
            await asyncio.sleep(0.1)


async def without_data(prometheus, session, queries):
    """Ask until each query has answered once, for as long as there is load; return the others."""
    left = list(dict.fromkeys(queries))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SENT / RATE):
            while left:
                left = [query for query in left if not await prometheus.ask(session, query)]
                await asyncio.sleep(0.2)
    return left


async def test_prometheus_adds_up_to_what_the_load_generator_counted(deployment):
    url, prometheus, session = deployment

    async def ready():
        async with session.get(url + "/readyz") as response:
            return response.status == 200

    async def scraped():
        return await prometheus.get(session, "status/config") and (
            await prometheus.ask(session, "up == 1")
            and await prometheus.number(session, "min(roma_executable_ready)") == 1
        )

    await until(ready)
    await until(scraped)
    burst = [2.0] * 12 + [4.0] * 12  # more than fit a queue
    arrivals = sorted([i / RATE for i in range(SENT)] + burst)
    streams = [Stream(model, arrivals, body, SLA) for model in MODELS]
    load = asyncio.create_task(run_load(streams, url, timeout=2.0))
    conditions = [c.value for alert in alerts.ALERTS for c in alert.conditions]
    recorded = [alerts.recorded(w) for w in alerts.WINDOWS]
    asked = [*queries(MODELS[0]), *conditions, *recorded]
    missing = await without_data(prometheus, session, asked)
    report = await load
    assert missing == []

    async def settled():
        return await prometheus.number(session, "sum(roma_requests_total)") == report.total.sent

    await until(settled)
    for m in report.models:
        total = functools.partial(prometheus.total, session, m.model)
        gave_up = m.reasons["timeout"]
        assert min(m.answered, m.invalid, m.rejected, m.failed - gave_up, gave_up) > 0, m
        assert await total("requests_total", outcome="answered") == m.answered + m.invalid
        assert await total("requests_total", outcome="rejected") == m.rejected
        assert await total("requests_total", outcome="failed") == m.failed - gave_up
        assert await total("requests_total", outcome="cancelled") == gave_up
        assert await total("rejected_requests_total") == m.rejected
        assert await total("invalid_answers_total") == m.invalid
        for part in ("request", "queue", "execution"):
            assert await total(f"{part}_duration_seconds_count") == m.answered
        in_time = await total("request_duration_seconds_bucket", le=str(SLA))
        late = await total("late_answers_total")
        assert in_time + late == m.answered
        broken = late + m.rejected + (m.failed - gave_up) + gave_up  # they gave up after the SLA
        assert await total("sla_late_requests_total") == broken
        assert await total("sla_requests_total") == in_time + broken
        # A client also counts the way to the gateway and back.
        assert 0 < late <= m.late
        spent = [await total(f"{part}_duration_seconds_sum") for part in ("queue", "execution")]
        assert sum(spent) == pytest.approx(await total("request_duration_seconds_sum"))
        assert sum(spent) < m.response_time.mean * m.answered
    by_device = "sum by (device) (roma_request_duration_seconds_count)"
    ran = await prometheus.ask(session, by_device)
    assert ran.keys() == {("cpu",), ("gpu",)}
    assert min(ran.values()) > 0
    reasons = await prometheus.ask(session, "sum by (reason) (roma_rejected_requests_total)")
    assert ("queue_full",) in reasons  # whether one waits for its deadline is a matter of luck
    assert await prometheus.ask(session, "roma_executable_starts_total == 1")
    assert not await prometheus.ask(session, "roma_executable_starts_total != 1")
    rules = (await prometheus.get(session, "rules"))["groups"]
    found = [rule for group in rules for rule in group["rules"]]
    assert len(found) == len(alerts.ALERTS) + len(alerts.WINDOWS) + 1
    assert {(rule["health"], rule.get("lastError")) for rule in found} == {("ok", None)}
    firing = await prometheus.ask(session, "sum by (alertname) (ALERTS{alertstate='firing'})")
    assert {name for (name,) in firing} <= {"RomaPromiseBurns"}

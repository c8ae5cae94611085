"""What a supervisor exposes, and that the dashboard asks for nothing else."""

import asyncio
import re
from dataclasses import replace

from aiohttp.test_utils import TestClient, TestServer

from controllers import registry
from controllers.measurement import Demand, hold
from dispatcher.core import Dispatcher
from dispatcher.live.admin.metrics import collect as collect_dispatcher
from dispatcher.live.admin.metrics import collect_control
from dispatcher.schedulers.registry import CPU, GPU
from roma.deploy import alerts, grafana
from roma.domain.events import ExecutorAdded
from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla
from roma.ui.dashboard.rows import Worker
from supervisor.actuators.recording import RecordingActuator
from supervisor.contention import Contention
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading
from supervisor.live import api
from supervisor.live.gpus import GpuReading, Gpus
from supervisor.live.loop import ControlLoop
from supervisor.live.metrics import collect
from tests.support.prometheus import queries

MODEL = ModelSpec("m", Sla.within(0.5, 0.02), 1.0)
GPU_READING = GpuReading(0, "a GPU", 0.5, 1 << 30, 2 << 30)


def ticked():
    """A loop after two ticks of a static law that asks for more than there is."""
    managed = [Managed(f"{n}@w", ModelSpec(n, Sla(0.5), 1.0), 0.1, 3.0, initial=1.0) for n in "ab"]
    core = Supervisor(managed, registry.build("static", {"level": "max"}), capacity=4.0)
    loop = ControlLoop(core, RecordingActuator(), [], worker="w", period=1.0)
    reports = tuple(ExecutorReport(m.name, "idle", 0, 0) for m in managed)
    reply = {"http://d": ExchangeReply("e", (), reports)}
    for second, used in ((0, 10.0), (1, 10.5)):
        readings = {m.name: Reading(1.0, used, 10 * second, 4 * second) for m in managed}
        for apply in core.tick(reply, readings, now=float(second)):
            core.on_applied(apply.executable, apply.cores)
        loop.ticks += 1
        loop.jitters.append(0.001)
    core.on_failed("b@w")
    return loop


def values(metrics):
    return {(s.name, *s.labels.values()): s.value for m in metrics for s in m.samples}


def test_cores_are_told_apart_by_what_they_are():
    found = values(collect([ticked()], ()))
    expected = {
        ("roma_cores_demanded", "a@w", "a"): 3.0,
        ("roma_cores_allocated", "a@w", "a"): 2.0,
        ("roma_cores_applied", "a@w", "a"): 2.0,
        ("roma_cores_used", "a@w", "a"): 0.5,
        ("roma_cpu_seconds_total", "a@w"): 10.5,
        ("roma_throttled_ratio", "a@w"): 0.4,
        ("roma_worker_demand_met_ratio", "w"): 4 / 6,
        ("roma_worker_cores", "w"): 4.0,
        ("roma_ticks_total", "w"): 2,
        ("roma_actuation_failures_total", "a@w"): 0,
        ("roma_actuation_failures_total", "b@w"): 1,
    }
    assert {key: found[key] for key in expected} == expected


def test_what_was_applied_and_throttled_adds_up():
    loop = ticked()
    managed = {name: status.managed for name, status in loop.core.status.items()}
    readings = {name: Reading(2.0, 11.0, 40, 9) for name in managed}
    loop.core.tick({}, readings, now=4.0)
    found = values(collect([loop], ()))
    # One second with the core that was found, three with the two that the last tick applied.
    assert found["roma_applied_core_seconds_total", "a@w"] == 1.0 * 1 + 2.0 * 3
    assert found["roma_quota_periods_total", "a@w"] == 40
    assert found["roma_throttled_periods_total", "a@w"] == 9


def test_the_terms_of_the_law_are_those_of_its_last_decision():
    loop = ticked()
    story = loop.core.status["a@w"].decisions
    story.append(replace(story[-1], demand=Demand(1.5, "", {"load": 1.25, "margin": 0.25})))
    found = values(collect([loop], ()))
    assert found["roma_controller_term_cores", "a@w", "a", "load"] == 1.25
    assert found["roma_controller_term_cores", "a@w", "a", "margin"] == 0.25
    story.append(replace(story[-1], demand=hold("nothing is known")))
    names = {name for name, *labels in values(collect([loop], ())) if "a@w" in labels}
    assert "roma_controller_term_cores" not in names


async def test_each_tick_s_lateness_and_actuation_are_counted():
    loop = ticked()
    running = asyncio.create_task(loop.run())
    while loop.ticks < 3:
        await asyncio.sleep(0)
    running.cancel()
    found = values(collect([loop], ()))
    assert found["roma_tick_jitter_seconds_count", "w"] == 1
    assert found["roma_actuation_duration_seconds_count", "w"] == 1
    assert found["roma_actuation_duration_seconds_bucket", "w", "10.0"] == 1
    assert found["roma_actuation_duration_seconds_sum", "w"] > 0
    assert found["roma_control_period_seconds", "w"] == 1.0


def test_what_others_take_of_the_host_is_told_where_it_is_known():
    loop = ticked()
    assert "roma_host_others_cores" not in {name for name, *_ in values(collect([loop], ()))}
    loop.core.contention = Contention(cpus=4, idle=0.5, others=2.5, stolen=0.25, waited=0.75)
    found = values(collect([loop], ()))
    assert found["roma_host_others_cores", "w"] == 2.5
    assert found["roma_host_stolen_cores", "w"] == 0.25
    assert found["roma_host_cpu_pressure_ratio", "w"] == 0.75


def test_before_the_first_tick_there_is_nothing_to_tell_of_an_executable():
    core = Supervisor([Managed("m@w", MODEL, 0.1, 3.0, initial=1.0)], None, capacity=4.0)
    loop = ControlLoop(core, RecordingActuator(), [], worker="w", period=1.0)
    told = {name for name, *labels in values(collect([loop], ())) if "m@w" in labels}
    assert told == {
        "roma_quota_changes_total",
        "roma_actuation_failures_total",
        "roma_applied_core_seconds_total",
    }


def test_dashboard_and_alerts_ask_for_metrics_that_exist():
    core = Dispatcher([MODEL], gpu=GPU["roma"], cpu=CPU["round_robin"])
    core.handle(ExecutorAdded(ExecutorSpec("m@w", Device.CPU, ("m",))), now=0.0)
    names = {
        sample.name
        for metrics in (
            collect_dispatcher(core, 0.0),
            collect_control([Worker("w", "http://w", answers=True)]),
            collect([ticked()], [GPU_READING]),
        )
        for metric in metrics
        for sample in metric.samples
    }
    # Without an answer there is no response time, and no term of a law that is static.
    names |= {"roma_response_time_seconds", "roma_controller_term_cores"}
    rules = [rule["expr"] for group in alerts.rules()["groups"] for rule in group["rules"]]
    recorded = {alerts.recorded(window).partition(":")[2] for window in alerts.WINDOWS}
    asked = {
        name
        for query in [*queries("m"), *rules]
        for name in re.findall(r"roma_\w+(?::\w+)?", query)
    }
    assert asked - names - recorded == set()
    assert len(asked) > 12


def test_curves_of_several_workers_are_told_apart():
    metrics = collect([ticked()], [GPU_READING])
    of_workers = {m.name for m in metrics if any("worker" in s.labels for s in m.samples)}
    targets = [t for panel in grafana.dashboard()["panels"] for t in panel.get("targets", ())]
    unnamed = {
        t["expr"]
        for t in targets
        if not re.search(r"\bsum\b", t["expr"])
        and any(name in t["expr"] for name in of_workers)
        and "{{worker}}" not in t["legendFormat"]
    }
    assert unnamed == set()


def test_curves_of_several_namespaces_are_told_apart():
    targets = [t for panel in grafana.dashboard()["panels"] for t in panel.get("targets", ())]
    burning = [t["legendFormat"] for t in targets if "(namespace, model)" in t["expr"]]
    assert len(burning) >= 6
    assert all(legend.startswith("{{namespace}} {{model}}") for legend in burning)


def test_every_curve_is_of_the_chosen_namespaces():
    for query in queries("m"):
        names = re.findall(r"roma_\w+(?::\w+)*", query)
        assert len(names) == query.count('{namespace=~".*"'), query


async def test_one_that_stands_by_is_no_control_loop_that_has_stalled():
    leaders = ["http://other:8700"]
    controlled = [api.Controlled(ticked(), lambda: "standby")]
    app = api.application(lambda: controlled, Gpus(), leader=lambda: leaders[0])
    async with TestClient(TestServer(app)) as client:
        standing_by = await (await client.get("/metrics")).text()
        leaders[0] = ""
        leading = await (await client.get("/metrics")).text()
    assert "roma_ticks_total{" not in standing_by
    assert "roma_worker_cores{" not in standing_by
    assert 'roma_ticks_total{worker="w"} 2.0' in leading

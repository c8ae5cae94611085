"""Write the tables of docs/metrics.md from the collectors that answer scrapes, and from the rules.

`python docs/metrics.py` rewrites the file; `--check` fails if it is out of date.
"""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.core import Metric

from controllers.measurement import Demand, Measurement
from dispatcher.core import Dispatcher
from dispatcher.live.admin import metrics as dispatcher_metrics
from dispatcher.live.http.server import Server
from dispatcher.live.planned.device import ERRORS
from dispatcher.live.unavailable import Reasons
from dispatcher.schedulers.registry import CPU, GPU
from roma.config.gateway import LimitsConfig
from roma.deploy.alerts import ALERTS
from roma.domain.actions import ActionStatus, Capabilities, ModelCapabilities
from roma.domain.events import (
    Event,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.exchange import ExchangeReply, ExecutorReport
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Priority, Request, Sla
from roma.domain.stats import Histogram
from roma.domain.variants import Variant
from roma.security.admin_ports import AdminPorts
from roma.ui.dashboard.rows import Worker
from supervisor.actuators.recording import RecordingActuator
from supervisor.contention import HostReading
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading
from supervisor.live import metrics as supervisor_metrics
from supervisor.live.gpus import GpuReading
from supervisor.live.loop import ControlLoop

FILE = Path(__file__).with_name("metrics.md")

MODEL = ModelSpec("m", Sla.within(0.5, 0.02), deadline=1.0, max_waiting=1)


def dispatcher() -> list[Metric]:
    """Return what a dispatcher tells in which everything has happened once."""
    core = Dispatcher([MODEL], gpu=GPU["roma"], cpu=CPU["round_robin"])
    events: list[Event] = [
        ExecutorAdded(ExecutorSpec("m@w", Device.CPU, ("m",))),
        ExecutorReady("m@w"),
        *(RequestArrived(Request(i, "m", 0.0, 1.0)) for i in range(3)),
        RequestArrived(Request(3, "m", 0.0, 1.0, priority=Priority.LOW)),
        ExecutionEnded(1, Result.OK),
    ]
    for event in events:
        core.handle(event, now=0.0)
    lost = Dispatcher([MODEL], gpu=GPU["roma"], cpu=CPU["round_robin"])
    lost.handle(events[0], now=0.0)
    reasons = Reasons(lost)
    reasons.note("m@w", reported={"m": "no such file"})
    return [
        *dispatcher_metrics.collect(core, 0.0),
        *dispatcher_metrics.collect_reasons(lost, reasons),
        *dispatcher_metrics.collect_control([Worker("w", "", answers=True)]),
    ]


def gateway_metrics() -> list[Metric]:
    """Return the metrics of the clients' HTTP port and the admin port."""

    async def collected() -> list[Metric]:
        gateway: Any = None
        server, ports = Server(gateway, LimitsConfig(), max_body_bytes=0), AdminPorts()
        ports.close()
        told = dispatcher_metrics.collect_gateway(server, {}, {"executable": 0, "shared": 0})
        return [*told, *dispatcher_metrics.collect_admin(ports)]

    return asyncio.run(collected())


def devices() -> list[Metric]:
    """Return what is told of planned devices, after one action."""
    model = replace(MODEL, variants=(Variant("m", 1.0),))
    core = Dispatcher([model], gpu=GPU["clockwork"], cpu=CPU["round_robin"])
    core.handle(ExecutorAdded(ExecutorSpec("g@w", Device.GPU, ("m",), is_planned=True)), now=0.0)
    offer = Capabilities(4, {"m": ModelCapabilities(1, 0.01, {1: 0.01})}, ("m",))
    core.handle(ExecutorReady("g@w", offer), now=0.0)
    device: Any = SimpleNamespace(
        actions=Counter({("infer", ActionStatus.OK): 1}),
        overruns={"infer": Histogram(ERRORS)},
        underruns={"infer": Histogram(ERRORS)},
    )
    return list(dispatcher_metrics.collect_devices(core, {"g@w": device}))


def supervisor() -> list[Metric]:
    """Return what a supervisor tells after three ticks, on a host with a GPU."""
    core = Supervisor([Managed("m@w", MODEL, 0.1, 3.0, initial=1.0)], _law, capacity=4.0)
    reply = {"d": ExchangeReply("e", (), (ExecutorReport("m@w", "idle", 0, 0),))}
    for second in range(3):
        core.tick(
            reply,
            {"m@w": Reading(1.0, 1.0 * second, second, 0)},
            now=float(second),
            host=HostReading(4, 2.0 * second, 0.0, 0.0),
        )
    loop = ControlLoop(core, RecordingActuator(), [], worker="w", period=1.0)
    return list(supervisor_metrics.collect([loop], [GpuReading(0, "", 0.5, 1, 2)]))


def _law(state: Any, _: Measurement, **__: float) -> tuple[Demand, Any]:
    return Demand(1.0, "", {"load": 1.0}), state


def render(text: str) -> str:
    """Return the document with fresh tables between its markers."""
    tables: Mapping[str, Iterable[Sequence[str]]] = {
        "dispatcher": map(_metric, [*dispatcher(), *devices(), *gateway_metrics()]),
        "supervisor": map(_metric, supervisor()),
        "alerts": (
            (
                f"`{alert.name}`" + (f" ({alert.window})" if alert.window else ""),
                " and ".join(f"`{c.value} {c.bad}`" for c in alert.conditions),
                alert.hold,
                alert.severity,
            )
            for alert in ALERTS
        ),
    }
    for name, rows in tables.items():
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        head = "| Alert | When | For | Severity |\n|---|---|---|---|"
        if name != "alerts":
            head = "| Metric | Type | Labels | Meaning |\n|---|---|---|---|"
        block = f"<!-- {name} -->\n{head}\n{lines}\n<!-- end -->"
        text, n = re.subn(
            rf"<!-- {name} -->.*?<!-- end -->", lambda _, b=block: b, text, flags=re.DOTALL
        )
        assert n == 1, name
    return text


def _metric(metric: Metric) -> tuple[str, str, str, str]:
    assert metric.samples, f"{metric.name}: nothing has happened that it counts"
    labels = [label for label in metric.samples[0].labels if label != "le"]
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return f"`{name}`", metric.type, ", ".join(labels), metric.documentation


def main() -> None:
    """Rewrite or check."""
    text = FILE.read_text()
    if "--check" in sys.argv:
        sys.exit(0 if render(text) == text else f"{FILE} is out of date: run {sys.argv[0]}")
    FILE.write_text(render(text))


if __name__ == "__main__":
    main()

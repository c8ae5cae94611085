"""Cost of observability: the dispatcher's sampling, its dashboard and scrapes, per second.

Everything here runs in the process that serves requests, so its share of a second is lost to the
throughput. The supervisor's part is the cost of decision texts and records per tick.
"""

import time
import timeit
from collections.abc import Callable
from statistics import median

from prometheus_client.exposition import generate_latest
from rich.console import Console

from bench.tables import new_table
from bench.ticks import tick_ms
from controllers.measurement import Demand, Measurement
from dispatcher import reports
from dispatcher.core import Dispatcher
from dispatcher.live.admin import metrics
from dispatcher.live.admin.page import _dumped, _event, overview
from dispatcher.schedulers.registry import CPU, GPU
from dispatcher.state.queues import Durations
from roma.config.control import DEFAULT_LAW
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla
from roma.telemetry.prometheus import _Collected
from roma.ui.dashboard.feed import Dashboard
from roma.ui.dashboard.rows import Worker
from supervisor.decision_log import Decision, plain

MODELS = 50
REQUESTS = 200
"""Per second, of all models."""

LOOKS = 300
RATE = 10_000
"""Requests per second: about what one gateway serves here (`python -m bench gateway`)."""

SCRAPE_INTERVAL = 5.0
"""Seconds between scrapes, as in compose/prometheus.yaml."""


def run() -> None:
    """Print ms of CPU time per second for 50 models, and the share of one core."""
    core, board = _core(), Dashboard("bench")
    specs = {name: queue.spec for name, queue in core.queues.items()}
    executors = [e.spec for e in core.executors]
    worker = Worker("w", "http://w", True, mode="control", capacity=8.0, demanded=4.0)
    told = {
        e.name: {"demand": 0.5, "allocation": 0.5, "applied": 0.5, "used": 0.3, "why": "so"}
        for e in executors
    }
    looks, number = [], 0
    for second in range(1, LOOKS + 1):
        number = _serve(core, number, float(second))
        start = time.process_time()
        reply = reports.reply(core, "e", float(second))
        board.take(
            reply, specs, executors, {"w": (worker, told)}, now=float(second), at=float(second)
        )
        looks.append(time.process_time() - start)
    costs = {
        "look at the board": (median(looks), 1.0),
        "one open page": (_time(lambda: _event("view", _dumped(board.view))), 1.0),
        "a scrape of /metrics": (
            _time(lambda: generate_latest(_Collected(metrics.collect(core, float(LOOKS))))),
            1 / SCRAPE_INTERVAL,
        ),
        f"histograms of {RATE} requests": (_time(_histograms), 1.0),
        "a page that opens": (_time(lambda: _dumped(overview(board.history))), 0.0),
    }
    title = f"seeing, {MODELS} models, {LOOKS} s of history"
    table = new_table(title, "what", "CPU ms", "per second", "share of a core")
    for what, (seconds, often) in costs.items():
        table.add_row(
            what, f"{seconds * 1000:.2f}", f"{often:g}" if often else "-", f"{seconds * often:.2%}"
        )
    total = sum(seconds * often for seconds, often in costs.values())
    table.add_row("together", "", "", f"{total:.2%}")
    console = Console()
    console.print(table)
    tick = tick_ms(DEFAULT_LAW, 1000.0, MODELS)
    console.print(
        f"supervisor tick, {MODELS} models: {tick:.2f} ms, of which records {_records():.2f}"
    )


def _core() -> Dispatcher:
    names = [f"m{i}" for i in range(MODELS)]
    core = Dispatcher(
        [ModelSpec(name, Sla(0.5), 1.0) for name in names],
        gpu=GPU["roma"],
        cpu=CPU["round_robin"],
    )
    for name in names:
        core.handle(ExecutorAdded(ExecutorSpec(f"{name}@w", Device.CPU, (name,), "w")), now=0.0)
        core.handle(ExecutorReady(f"{name}@w"), now=0.0)
    return core


def _serve(core: Dispatcher, number: int, now: float) -> int:
    """Let a second's requests arrive and be answered."""
    for i in range(REQUESTS):
        at = now - 1 + i / REQUESTS
        number += 1
        arrived = RequestArrived(Request(number, f"m{i % MODELS}", at, at + 1.0))
        for command in core.handle(arrived, now=at):
            if isinstance(command, Execute):
                core.handle(ExecutionEnded(command.execution, Result.OK), now=at + 0.002)
    return number


def _time(act: Callable[[], object]) -> float:
    # With garbage collection, as in a dispatcher: `timeit` would disable it.
    return median(timeit.repeat(act, "gc.enable()", time.process_time, number=1, repeat=30))


def _histograms() -> None:
    durations = Durations(0.5)
    for i in range(RATE):
        durations.add(0.0, 0.001 * (i % 100), 0.15 + 0.001 * (i % 50))


def _records() -> float:
    """Return the ms that a tick spends on making its decisions and their lines."""
    measurement = Measurement(0.3, 0.1, 10, 0, 10, 0, 0, 2, 1, 0.5, 1.0, 0.5, 0.4, 1.0)
    demand = Demand(1.0, "so", {"feed_forward": 1.0, "backlog": 0.0}, {"cost": 0.05})

    def record() -> None:
        for _ in range(MODELS):
            decision = Decision(
                time=1.0,
                executable="m@w",
                model="m",
                dt=1.0,
                fresh=False,
                measurement=measurement,
                used=0.5,
                demand=demand,
                minimum=0.1,
                maximum=4.0,
                floor=0.1,
                wanted=1.0,
                total=50.0,
                capacity=100.0,
                exact=1.0,
                allocation=1.0,
                applied=1.0,
            )
            plain(decision, at=1.0, worker="w")

    return _time(record) * 1000

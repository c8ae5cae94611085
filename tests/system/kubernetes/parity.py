"""The same models under the same load, once in pods and once as processes: part of `bench kubernetes`.

Both have the same period, and no burst, which a pod cannot have. What processes get by default on
top, burst, is reported beside.
"""

import asyncio
import json
import re
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from roma.tools.demo import inputs, models
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream, run_load
from roma.workload.arrivals import Profile, RateStep, poisson
from tests.support import caretaker
from tests.support.cluster_models import CHECKOUT, Controlled, deployment
from tests.support.up import Up

SLAS = {"digits": 0.15, "photos": 0.6}
WARM_UP = {"digits": [40], "photos": [3]}
LOADS = {
    "steps": (12, {"digits": [20, 80, 40], "photos": [2, 6, 3]}),
    "bursts": (5, {"digits": [1, 60, 1, 80, 1, 70], "photos": [1, 5, 1, 6, 1, 5]}),
}
"""Seconds of a rate, and the rates by model."""

SEEDS = (11, 12, 13)
MOST_POINTS, MOST_CORES = 0.03, 0.15
"""Differences that count as none: of late shares, and of core-seconds as a share."""


@dataclass
class Outcome:
    """Requests sent and broken promises in all seeds, and core-seconds."""

    sent: int = 0
    broken: int = 0
    core_seconds: float = 0.0

    @property
    def late(self):
        """Share of the requests whose promise was broken."""
        return self.broken / self.sent


def _streams(step, rates, seed):
    bodies = {
        "digits": [body for body, _ in inputs.digits_held_out()],
        "photos": inputs.photo_bodies(8, seed=1),
    }
    return [
        Stream(
            name,
            poisson(Profile(tuple(RateStep(r, step) for r in steps)), seed=seed + i),
            bodies[name],
            SLAS[name],
        )
        for i, (name, steps) in enumerate(rates.items())
    ]


async def _measured(url, control):
    """Load a deployment; return what came of each load."""
    await run_load(_streams(12, WARM_UP, 1), url, timeout=10)
    outcomes = {}
    for name, load in LOADS.items():
        found, before = Outcome(), _core_seconds(control)
        for seed in SEEDS:
            report = await run_load(_streams(*load, seed), url, timeout=10)
            for model in report.models:
                found.sent += model.sent
                found.broken += model.late + model.rejected + model.failed
        found.core_seconds = _core_seconds(control) - before
        outcomes[name] = found
    return outcomes


def _core_seconds(control):
    with urllib.request.urlopen(f"{control}/metrics", timeout=5) as response:
        text = response.read().decode()
    values = re.findall(r"^roma_applied_core_seconds_total\{.*\} (\S+)", text, re.MULTILINE)
    assert values, text
    return sum(map(float, values))


def _described():
    return {
        name: {"sla": {"response_time": sla}, "cpu": {"max": 1.5}, "max_waiting": 500}
        for name, sla in SLAS.items()
    }


async def _in_pods(plane, prepared):
    plane.apply(*(deployment(name, prepared[name].path) for name in SLAS))
    with tempfile.TemporaryDirectory() as directory:
        controlled = Controlled(Path(directory), plane, "default", _described())
        with controlled:
            await controlled.until(lambda: controlled.ready(len(SLAS)))
            found = await _measured(controlled.url, controlled.controls[0])
    for name in SLAS:
        plane.kubectl("delete", "deployment", name, "--wait=false")
    return found


async def _as_processes(prepared, burst):
    described = _described()
    for name in SLAS:
        described[name]["path"] = str(prepared[name].path)
    gateway, admin, control, base, *_ = free_ports(3 + len(SLAS))
    content = {
        "name": "parity",
        "models": described,
        "workers": [{"name": "local", "cores": 2, "base_port": base}],
        "control": {"port": control, "period": 1, "cfs_burst": burst},
        "gateway": {"port": gateway, "admin_port": admin},
    }
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "roma.yaml"
        file.write_text(json.dumps(content))
        with Up(file) as up:
            await up.ready()
            return await _measured(up.url, up.supervisor)


def compare(plane):
    """Print the table; return whether pods and processes differ by more than nothing."""
    caretaker.mark()
    prepared = models.prepare(CHECKOUT / ".cache", download=False)
    rows = {
        "pods": asyncio.run(_in_pods(plane, prepared)),
        "processes, no burst": asyncio.run(_as_processes(prepared, 0)),
        "processes, burst": asyncio.run(_as_processes(prepared, 1)),
    }
    table = Table(title="the same models and loads, period 1 s")
    for column in ("load", "", "requests", "late, refused or failed", "core-seconds"):
        table.add_column(column, justify="left" if column in ("load", "") else "right")
    differs = False
    for load in LOADS:
        for name, found in rows.items():
            shown = f"{found[load].late:.2%}", f"{found[load].core_seconds:.0f}"
            table.add_row(load, name, f"{found[load].sent:,}", *shown)
    Console().print(table)
    for load in LOADS:
        pods, processes = rows["pods"][load], rows["processes, no burst"][load]
        points = abs(pods.late - processes.late)
        cores = abs(pods.core_seconds / processes.core_seconds - 1)
        Console().print(
            f"{load}: pods and processes differ by {100 * points:.1f} points "
            f"(aim ≤ {100 * MOST_POINTS:.0f}) and {cores:.0%} of the core-seconds "
            f"(aim ≤ {MOST_CORES:.0%})"
        )
        differs |= points > MOST_POINTS or cores > MOST_CORES
    return differs

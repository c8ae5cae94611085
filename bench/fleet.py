"""What `clockwork` costs a request at the size of the paper's fleet: 4,026 models, 24 devices.

The whole dispatcher core is measured (books, deadlines, statistics, policy) over emulated devices
in virtual time: CPU time of arrivals, batches, loads, unloads and their outcomes, divided by the
requests. Every figure is the best of some rounds, each in a process of its own.
"""

import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from bench.builds import BUILDS, environment
from dispatcher.schedulers.clockwork import Clockwork
from roma.events import Command, Event
from roma.experiments.clockwork.counts import Counts
from roma.experiments.clockwork.functions import sends
from roma.experiments.clockwork.runs import PAGES
from roma.sim.fleet import Fleet, Plan
from roma.worker.models_table import TABLE_1, offers

COPIES = 671
"""Of each of the six models of Table 1."""

DEVICES = 24
SLO = 0.1
RATES = (2_500, 5_000, 10_000)
WARM, SECONDS = 2.0, 3.0
"""Virtual seconds before, and of what is measured."""

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Found:
    """One run: seconds of a core per request, and shares of the requests."""

    cost: float
    good: float
    cold: float
    loads: float


def run() -> None:
    """Print µs per request by rate."""
    title = f"clockwork: µs of one core per request, best of {ROUNDS}"
    table = Table(title=f"{title}; {COPIES * len(TABLE_1)} models, {DEVICES} devices")
    table.add_column("req/s", justify="right")
    for name in (*BUILDS, "in time", "cold", "LOADs per s"):
        table.add_column(name, justify="right")
    for rate in RATES:
        # In turns, so that a drift of the machine meets both.
        rounds = [{b: _measured(b, rate) for b in BUILDS} for _ in range(ROUNDS)]
        costs = [min(r[b].cost for r in rounds) * 1e6 for b in BUILDS]
        any_run = rounds[0][BUILDS[0]]
        table.add_row(
            f"{rate}",
            *(f"{cost:.1f}" for cost in costs),
            f"{any_run.good:.2%}",
            f"{any_run.cold:.1%}",
            f"{any_run.loads:.0f}",
        )
    Console().print(table)


def _measured(build: str, rate: int) -> Found:
    command = [sys.executable, "-m", "bench.fleet", f"{rate}"]
    done = subprocess.run(
        command, env=environment(build), check=True, capture_output=True, text=True
    )
    return Found(**json.loads(done.stdout))


def measure(rate: float) -> Found:
    """Run one fleet with a clock of CPU time around its dispatcher core."""
    models = offers(dict.fromkeys(TABLE_1, COPIES))
    counts = Counts(WARM, WARM + SECONDS)
    fleet = Fleet(Plan(models, DEVICES, PAGES, SLO, Clockwork), on_end=counts.add)
    for model, times in sends(tuple(models), rate, seed=1, traces=None):
        fleet.send(model, times)
    handle, spent = fleet.handle, 0.0

    def timed(event: Event, *, now: float) -> list[Command]:
        nonlocal spent
        start = time.thread_time()
        commands = handle(event, now=now)
        spent += time.thread_time() - start
        return commands

    fleet.run(WARM)
    loads, fleet.handle = fleet.loads, timed
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as `dispatcher.live.app.run`
    fleet.run(WARM + SECONDS)
    total = max(1, counts.total)
    return Found(
        spent / total, counts.good / total, counts.cold / total, (fleet.loads - loads) / SECONDS
    )


if __name__ == "__main__":
    print(json.dumps(asdict(measure(float(sys.argv[1])))))

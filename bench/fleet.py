"""Cost of a request under `clockwork` for a fleet of the paper's size: 4,026 models, 24 devices.

The whole dispatcher core is measured: accounting, deadlines, statistics, policy. A run over
emulated devices in virtual time records every event. The events are then replayed, one after
another, to a fresh core that does the same again, with nothing but that core on the clock. A clock
around each event in the run itself, with the run's own memory in the caches, finds a third to a
half more. Every figure is the best of some rounds, each in a process of its own.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from bench.builds import BUILDS, environment
from bench.tables import new_table
from dispatcher.core import Dispatcher
from dispatcher.schedulers.clockwork.policy import Clockwork
from roma.device.models_table import TABLE_1, offers
from roma.domain.events import Command, Event
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.clockwork.functions import sends
from roma.lab.experiments.clockwork.runs import PAGES
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import FleetPlan

COPIES = 671
"""Copies of each of the six models of Table 1."""

DEVICES = 24
SLO = 0.1
RATES = (2_500, 5_000, 10_000)
WARM, SECONDS = 2.0, 3.0
"""Virtual seconds before the measurement, and of the measurement."""

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Found:
    """A run: seconds of a core per request, and shares of the requests."""

    cost: float
    good: float
    cold: float
    loads: float


def run() -> None:
    """Print µs per request by rate."""
    title = f"clockwork: µs of one core per request, best of {ROUNDS}"
    title += f"; {COPIES * len(TABLE_1)} models, {DEVICES} devices"
    table = new_table(title, "req/s", *BUILDS, "in time", "cold", "LOADs per s", words=0)
    for rate in RATES:
        # In turns, so that a drift of the machine affects both.
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
    """Run one fleet, then replay its events under a clock of CPU time."""
    plan = FleetPlan(offers(dict.fromkeys(TABLE_1, COPIES)), DEVICES, PAGES, SLO, Clockwork)
    counts = Counts(WARM, WARM + SECONDS)
    fleet = Fleet(plan, on_end=counts.add)
    for model, times in sends(tuple(plan.models), rate, seed=1, traces=None):
        fleet.send(model, times)
    story: list[tuple[Event, float]] = []
    handle = fleet.handle

    def noted(event: Event, *, now: float) -> list[Command]:
        story.append((event, now))
        return handle(event, now=now)

    fleet.handle = noted
    fleet.run(WARM)
    warm, loads = len(story), fleet.loads
    fleet.run(WARM + SECONDS)
    loads, live = fleet.loads - loads, fleet.dispatcher.live
    core = Fleet(plan, on_end=counts.add).dispatcher
    _replay(core, story[:warm])
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as `dispatcher.live.app.run`
    begun = time.thread_time()
    _replay(core, story[warm:])
    spent = time.thread_time() - begun
    assert core.live == live, "the same events had another end"
    total = max(1, counts.total)
    return Found(spent / total, counts.good / total, counts.cold / total, loads / SECONDS)


def _replay(core: Dispatcher, story: Sequence[tuple[Event, float]]) -> None:
    for event, now in story:
        core.handle(event, now=now)
        core.next_wakeup()


if __name__ == "__main__":
    print(json.dumps(asdict(measure(float(sys.argv[1])))))

"""`clockwork-scale`: peak goodput by number of emulated devices (Clockwork, §6.6, Fig. 11).

Two limits are looked for: that of the devices, in virtual time, and that of the scheduler, by what
one request costs it on a core of this machine.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.schedulers.clockwork import Clockwork
from roma.events import Command, Event
from roma.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.experiments.clockwork.counts import Counts
from roma.experiments.clockwork.functions import sends
from roma.experiments.clockwork.runs import PAGES
from roma.experiments.lab import Lab
from roma.sim.fleet import Fleet, Plan
from roma.worker.models_table import TABLE_1, offers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVICES = (4, 8, 16, 32)
OFFERED = (150.0, 250.0, 350.0, 450.0)
"""r/s per device, in successive runs; the paper raises the load every 60 s."""

COPIES = 671
SLO = 0.1
BEGIN, SECONDS = 2.0, 2.0

PAPER = "In the paper goodput is about 1,000 r/s per worker, and its controller's limit 103,387 r/s"


@dataclass(frozen=True, slots=True)
class Job:
    """One run; `rate` in r/s per device."""

    devices: int
    rate: float
    seed: int = 1
    copies: int = COPIES


@dataclass(frozen=True, slots=True)
class Found:
    """Goodput and offered load in r/s; `cost` in seconds of one core per request."""

    offered: float
    goodput: float
    cost: float


def simulate(job: Job) -> Found:
    """Run a fleet with a clock of CPU time around the dispatcher core."""
    counts = Counts(BEGIN, BEGIN + SECONDS)
    models = offers(dict.fromkeys(TABLE_1, job.copies))
    plan = Plan(models, job.devices, PAGES, SLO, Clockwork, seed=job.seed)
    fleet = Fleet(plan, on_end=counts.add)
    total = job.rate * job.devices
    for model, times in sends(tuple(models), total, seed=job.seed, traces=None):
        fleet.send(model, times)
    spent, handle = 0.0, fleet.handle

    def timed(event: Event, *, now: float) -> list[Command]:
        nonlocal spent
        start = time.thread_time()
        commands = handle(event, now=now)
        spent += time.thread_time() - start
        return commands

    fleet.run(BEGIN)
    fleet.handle = timed
    fleet.run(BEGIN + SECONDS)
    ended = max(1, counts.total)
    return Found(counts.total / counts.seconds, counts.goodput, spent / ended)


COLUMNS = (
    Column("devices", "d"),
    Column("offered at most r/s", ".0f"),
    Column("peak goodput r/s", ".0f"),
    Column("per device", ".0f"),
    Column("core µs per request", ".1f"),
    Column("one core schedules r/s", ",.0f"),
)


def compare(lab: Lab, devices: Sequence[int] = DEVICES, *, copies: int = COPIES) -> Output:
    """Return the peak goodput of every number of devices, and where the scheduler saturates."""
    jobs = [Job(n, rate, seed, copies) for n in devices for rate in OFFERED for seed in lab.seeds]
    results = iter(zip(jobs, lab.map(simulate, jobs), strict=True))
    rows: list[tuple[Cell, ...]] = []
    for n in devices:
        found = [next(results)[1] for _ in range(len(OFFERED) * len(lab.seeds))]
        peak = max(found, key=lambda f: f.goodput)
        most = max(f.offered for f in found)
        rows.append((n, most, peak.goodput, peak.goodput / n, peak.cost * 1e6, 1 / peak.cost))
    table = Table(
        "clockwork-scale",
        "Peak goodput by number of devices (Fig. 11)",
        COLUMNS,
        rows,
        f"{copies * len(TABLE_1)} models of Table 1, SLO {SLO * 1e3:.0f} ms, synthetic functions; "
        "the load is raised in steps. Goodput is in virtual time; the cost is that of the whole "
        f"dispatcher core on this machine, in CPU time. {PAPER}.",
    )
    picture = Picture("clockwork-scale", lambda figure: _draw(figure, rows), (7.0, 4.5))
    first, last = rows[0], rows[-1]
    return Output((table,), (picture,), (_linear(first, last),))


def _linear(first: tuple[Cell, ...], last: tuple[Cell, ...]) -> Check:
    each = [float(row[3] or 0.0) for row in (first, last)]
    return Check(
        f"goodput grows with the devices: {each[0]:.0f} r/s each of {first[0]}, "
        f"{each[1]:.0f} each of {last[0]}",
        each[1] >= 0.9 * each[0],
    )


def _draw(figure: "Figure", rows: Sequence[tuple[Cell, ...]]) -> None:
    axis = figure.subplots()
    devices, _, goodput, _, _, core = zip(*rows, strict=True)
    axis.plot(devices, goodput, marker="o", label="peak goodput")
    axis.plot(devices, core, marker=".", linestyle=":", label="what one core schedules")
    axis.set_xlabel("emulated devices")
    axis.set_ylabel("r/s")
    axis.set_ylim(bottom=0)
    axis.legend()


SCALE = Experiment(
    "clockwork-scale",
    "Clockwork's Fig. 11: peak goodput by number of devices, and where the scheduler saturates",
    compare,
    seeds=1,
)

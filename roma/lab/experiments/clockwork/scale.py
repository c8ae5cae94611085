"""`clockwork-scale`: goodput by number of emulated devices (Clockwork, §6.6, Fig. 11).

The time of a core that decisions take on this machine passes in virtual time too: the dispatcher is
one thread, and once it is saturated, more devices add no goodput.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from dispatcher.schedulers.clockwork.policy import Clockwork
from roma.device.models_table import TABLE_1, offers
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.clockwork.functions import sends
from roma.lab.experiments.clockwork.runs import PAGES
from roma.lab.experiments.intervals import interval, interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import FleetPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVICES = (4, 8, 16, 32, 64, 128)
OFFERED = (50.0, 75.0, 100.0, 150.0, 200.0, 250.0, 350.0, 450.0)
"""r/s per device, in successive runs; the paper raises the load every 60 s."""

COPIES = 671
SLO = 0.1
BEGIN, SECONDS = 2.0, 2.0
GROWS = 1.1
"""Least gain in goodput from twice the devices that counts as growth."""

PAPER = "In the paper goodput is about 1,000 r/s per worker, and its controller's limit 103,387 r/s"


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """A run; `rate` in r/s per device."""

    devices: int
    rate: float
    seed: int = 1
    copies: int = COPIES


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """Goodput and ended requests in r/s; `cost` of each of these in seconds of a core."""

    ended: float
    goodput: float
    cost: float

    @property
    def busy(self) -> float:
        """Utilisation of the dispatcher's core."""
        return self.cost * self.ended


def simulate(job: ScaleJob) -> ScaleResult:
    """Run a fleet with a clock of CPU time around the dispatcher core."""
    counts = Counts(BEGIN, BEGIN + SECONDS)
    models = offers(dict.fromkeys(TABLE_1, job.copies))
    plan = FleetPlan(models, job.devices, PAGES, SLO, Clockwork, seed=job.seed)
    fleet = Fleet(plan, on_end=counts.add, clock=time.thread_time)
    total = job.rate * job.devices
    for model, times in sends(tuple(models), total, seed=job.seed, traces=None):
        fleet.send(model, times)
    fleet.run(BEGIN)
    before = fleet.decided_for
    fleet.run(BEGIN + SECONDS)
    cost = (fleet.decided_for - before) / max(1, counts.total)
    return ScaleResult(counts.total / counts.seconds, counts.goodput, cost)


COLUMNS = (
    Column("devices", "d"),
    Column("offered r/s", ",.0f"),
    Column("peak goodput r/s", ",.0f"),
    Column("±", ",.0f"),
    Column("per device", ".0f"),
    Column("core µs per request", ".1f"),
    Column("dispatcher busy", ".0%"),
)


def compare(lab: Lab, devices: Sequence[int] = DEVICES, *, copies: int = COPIES) -> Output:
    """Return the peak goodput of every number of devices, and where the dispatcher saturates."""
    jobs = [ScaleJob(n, rate, copies=copies) for n in devices for rate in OFFERED]
    results = lab.by_seed(simulate, jobs, lambda job, seed: replace(job, seed=seed))
    found = dict(zip(jobs, results, strict=True))
    rows = [_row({j: runs for j, runs in found.items() if j.devices == n}) for n in devices]
    table = Table(
        "clockwork-scale",
        "Peak goodput by number of devices (Fig. 11)",
        COLUMNS,
        rows,
        f"{copies * len(TABLE_1)} models of Table 1, SLO {SLO * 1e3:.0f} ms, synthetic functions; "
        f"the load is raised in {len(OFFERED)} steps. Goodput is in virtual time, in which the "
        "CPU time of the whole dispatcher core on this machine passes too, one decision after the "
        f"other; sockets and HTTP take none. {PAPER}. {interval_note(len(lab.seeds))}",
    )
    picture = Picture("clockwork-scale", lambda figure: _draw(figure, rows), (7.0, 4.5))
    return Output((table,), (picture,), _checks(rows))


def _row(found: Mapping[ScaleJob, Sequence[ScaleResult]]) -> tuple[Cell, ...]:
    """Return the row of one number of devices: the load with the largest mean goodput."""
    job = max(found, key=lambda job: fmean(run.goodput for run in found[job]))
    goodput, half = interval([run.goodput for run in found[job]])
    cost, busy = (fmean(getattr(run, name) for run in found[job]) for name in ("cost", "busy"))
    n = job.devices
    return n, job.rate * n, goodput, half, goodput / n, cost * 1e6, busy


def _checks(rows: Sequence[tuple[Cell, ...]]) -> tuple[Check, ...]:
    goodput = [float(row[2] or 0.0) for row in rows]
    grown = [b / a for a, b in pairwise(goodput) if a]
    stops = next((i for i, times in enumerate(grown) if times < GROWS), len(rows) - 1)
    first, last = rows[0], rows[stops]
    each = [float(row[4] or 0.0) for row in (first, last)]
    return (
        Check(
            f"goodput grows with the devices to {last[0]}: {each[0]:.0f} r/s each of {first[0]}, "
            f"{each[1]:.0f} each of {last[0]}",
            stops > 0 and goodput[stops] == max(goodput[: stops + 1]),
        ),
    )


def _draw(figure: "Figure", rows: Sequence[tuple[Cell, ...]]) -> None:
    axis = figure.subplots()
    devices, offered, goodput, *_ = zip(*rows, strict=True)
    axis.plot(devices, offered, marker=".", linestyle=":", label="offered then")
    axis.plot(devices, goodput, marker="o", label="peak goodput")
    axis.set_xlabel("emulated devices")
    axis.set_ylabel("r/s")
    axis.set_ylim(bottom=0)
    axis.legend()


SCALE = Experiment(
    "clockwork-scale",
    "Clockwork's Fig. 11: peak goodput by number of devices, and where the dispatcher saturates",
    compare,
    seeds=5,
)

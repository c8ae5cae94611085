"""`clockwork-slo`: the lowest SLO of each system under overload (Clockwork, §6.1, Fig. 5).

15 copies of ResNet50 on one device, 16 closed-loop clients each: far more than the device can do,
so that goodput depends on the scheduler alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dispatcher.schedulers.base import Scheduler
from dispatcher.schedulers.clockwork.policy import Clockwork, ClockworkPaper
from dispatcher.schedulers.roma import Roma
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clockwork.batching import EXECUTIONS, BatchingEdf, BatchingFcfs
from roma.lab.experiments.clockwork.clipper import Clipper
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.clockwork.runs import (
    PAGES,
    Clients,
    FleetTrial,
    milliseconds,
    over_seeds,
    resnets,
)
from roma.lab.experiments.intervals import interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet_plan import FleetPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
COPIES = 15
CONCURRENCY = 16
WARM_UP = 0.5
CONVERGENCE = 10.0
"""Seconds that a reactive system gets to converge before it is measured."""

SECONDS = 3.0
"""Seconds of virtual time, after the warm-up."""

NEVER = 1000.0
"""Seconds that systems without deadlines let a request live."""

PAPER: Mapping[tuple[str, float], float] = {("Clockwork", 0.5): 800.0}
"""Goodput (r/s) where §6.1 gives it in words; its Fig. 5 is a plot."""


@dataclass(frozen=True, slots=True)
class PolicySetup:
    """A policy, with its devices and deadlines."""

    name: str
    policy: type[Scheduler]
    planned: bool = False
    patience: float | None = None
    ahead: float = 0.005
    warm_up: float = WARM_UP

    def plan(
        self, slo: float, noise: Noise, late: Sequence[tuple[float, int, float]] = ()
    ) -> FleetPlan:
        """Return a plan of one device."""
        return FleetPlan(
            models=resnets(COPIES),
            devices=1,
            pages=PAGES,
            deadline=slo,
            policy=self.policy,
            planned=self.planned,
            patience=self.patience,
            ahead=self.ahead,
            noise=noise,
            late=late,
        )


OURS = PolicySetup("clockwork (ours)", Clockwork, planned=True)
SYSTEMS = (
    OURS,
    PolicySetup("ours, 1 ms ahead", Clockwork, planned=True, ahead=0.001),
    PolicySetup("Clockwork", ClockworkPaper, planned=True),
    PolicySetup("Clipper-like", Clipper, patience=NEVER, warm_up=CONVERGENCE),
    PolicySetup("EDF, refusing", BatchingEdf),
    PolicySetup("ROMA", Roma, patience=NEVER),
    PolicySetup("FCFS", BatchingFcfs, patience=NEVER),
)

QUIET = Noise(stalls=0.0)
"""Durations vary as the paper measured, but without stalls."""

GAP = 0.5
DELAY = 0.02


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A disturbance of the device: stalls, or a delay every `GAP` seconds."""

    name: str
    noise: Noise = QUIET
    is_late: bool = False

    def delays(self, end: float) -> tuple[tuple[float, int, float], ...]:
        """Return the plan's disturbances from the warm-up's end on."""
        count = int((end - WARM_UP) / GAP) if self.is_late else 0
        return tuple((WARM_UP + (i + 0.5) * GAP, 0, DELAY) for i in range(count))


DISTURBANCES = (
    Disturbance("one action in a million stalls for 10 ms, as in the paper", Noise()),
    Disturbance("one action in twenty stalls for 10 ms", Noise(stalls=0.05)),
    Disturbance("the device is 20 ms late twice a second", is_late=True),
)
DISTURBED_SLOS = (0.025, 0.1, 0.5)

COLUMNS = (
    Column("SLO ms", ".0f"),
    Column("system"),
    Column("goodput r/s", ".0f"),
    Column("±", ".0f"),
    Column("paper", ".0f"),
    Column("of ideal", ".1%"),
    Column("refused r/s", ".0f"),
    Column("late r/s", ".1f"),
    Column("p50 ms", ".1f"),
    Column("p99 ms", ".1f"),
    Column("max ms", ".2f"),
)

NOTE = (
    f"{COPIES} copies of ResNet50 with the paper's Table 1 on one device, {CONCURRENCY} "
    f"closed-loop clients each, {SECONDS:g} s after {WARM_UP:g} s of warm-up "
    f"({CONVERGENCE:g} s for Clipper-like). The ideal is the largest "
    "b / exec(b) over batch sizes b whose execution and two messages fit the SLO. "
    "Latencies are of answers, late ones too. A refused client asks again after 1 ms, which is "
    "why refusals outnumber answers where the SLO is tight. The last four hold every model all the "
    "time; EDF refuses with the admission of this gateway, the other three never do; EDF and "
    "FCFS batch what waits behind the head that they pick, EDF as much as its head has the time "
    "for; ROMA runs one request at a time."
)


def ideal(slo: float, latency: float = 1e-4) -> float:
    """Return the goodput (r/s) of a device that always runs the best batch that fits the SLO."""
    fitting = [b / s for b, s in EXECUTIONS.items() if s + 2 * latency <= slo]
    return max(fitting, default=0.0)


def _trial(plan: FleetPlan, seconds: float, warm_up: float = WARM_UP) -> FleetTrial:
    clients = Clients("all", tuple(plan.models), concurrency=CONCURRENCY)
    return FleetTrial(plan, (clients,), warm_up, warm_up + seconds)


def compare(
    lab: Lab,
    slos: Sequence[float] = SLOS,
    systems: Sequence[PolicySetup] = SYSTEMS,
    seconds: float = SECONDS,
) -> Output:
    """Return the results of these systems at these SLOs, undisturbed."""
    trials = {
        (slo, system.name): _trial(system.plan(slo, QUIET), seconds, system.warm_up)
        for slo in slos
        for system in systems
    }
    found = {point: counts["all"] for point, counts in over_seeds(lab, trials).items()}
    rows = [_row(slo, name, counts) for (slo, name), counts in found.items()]
    title = "Goodput by SLO under overload (Fig. 5)"
    note = f"{NOTE} {interval_note(len(lab.seeds))}"
    table = Table("clockwork-slo", title, COLUMNS, rows, note)
    pictures = (
        Picture("clockwork-slo", lambda figure: _draw(figure, found), (8.0, 4.0)),
        Picture("clockwork-slo-latency", lambda figure: _draw_curves(figure, found), (10.0, 3.5)),
    )
    return Output((table,), pictures, _checks(found))


def disturb(
    lab: Lab, slos: Sequence[float] = DISTURBED_SLOS, seconds: float = SECONDS
) -> tuple[Table, list[Check]]:
    """Return the effect of disturbances of the device on our system."""
    end = WARM_UP + seconds
    trials = {
        (slo, d): _trial(OURS.plan(slo, d.noise, d.delays(end)), seconds)
        for slo in slos
        for d in DISTURBANCES
    }
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for (slo, disturbance), counts in over_seeds(lab, trials).items():
        found = counts["all"]
        struck = [time for time, _, _ in disturbance.delays(end)]
        longest = _longest(found.late_at, struck) if struck else None
        answers = max(1, found.good + found.late)
        rows.append(
            (
                slo * 1e3,
                disturbance.name,
                found.goodput,
                found.half("goodput"),
                found.goodput / ideal(slo),
                found.late,
                found.late / answers,
                milliseconds(longest),
            )
        )
        if longest is not None:
            checks.append(
                Check(
                    f"SLO {slo * 1e3:.0f} ms, {DELAY * 1e3:.0f} ms late "
                    f"{len(struck) * len(lab.seeds)} times: the "
                    f"last late answer comes {longest * 1e3:.0f} ms after a delay (at most the "
                    "delay and three batches: the one that ran, the one it struck and the next)",
                    longest <= DELAY + 3 * max(EXECUTIONS.values()),
                )
            )
    table = Table(
        "clockwork-slo-disturbed",
        "Ours with a device that is late",
        (
            Column("SLO ms", ".0f"),
            Column("disturbance"),
            Column("goodput r/s", ".0f"),
            Column("±", ".0f"),
            Column("of ideal", ".1%"),
            Column("late answers", "d"),
            Column("of all answers", ".2%"),
            Column("last of them after ms", ".0f"),
        ),
        rows,
        f"{interval_note(len(lab.seeds))} Late answers are those of all runs.",
    )
    return table, checks


def _longest(late_at: Sequence[float], struck: Sequence[float]) -> float:
    """Return the longest time from a disturbance to a late answer after it; ∞ if none was."""
    before = (max((t for t in struck if t <= at), default=-math.inf) for at in late_at)
    return max((at - t for at, t in zip(late_at, before, strict=True)), default=0.0)


def _row(slo: float, name: str, counts: Counts) -> tuple[Cell, ...]:
    latencies = counts.latencies
    return (
        slo * 1e3,
        name,
        counts.goodput,
        counts.half("goodput"),
        PAPER.get((name, slo)),
        counts.goodput / ideal(slo),
        counts.refused / counts.seconds,
        counts.late / counts.seconds,
        milliseconds(latencies.quantile(0.5)),
        milliseconds(latencies.quantile(0.99)),
        milliseconds(latencies.largest),
    )


def _checks(found: Mapping[tuple[float, str], Counts]) -> tuple[Check, ...]:
    checks = []
    for (slo, name), counts in found.items():
        if name != OURS.name:
            continue
        share = counts.goodput / ideal(slo)
        if slo >= 0.025:
            claim = f"SLO {slo * 1e3:.0f} ms: ours reaches {share:.1%} of the ideal (≥ 95 %)"
            checks.append(Check(claim, share >= 0.95))
        claim = f"SLO {slo * 1e3:.0f} ms: none of {counts.good + counts.late} answers late"
        checks.append(Check(claim, counts.late == 0))
        clipper = found.get((slo, "Clipper-like"))
        if clipper is not None and slo < 0.1:
            claim = f"SLO {slo * 1e3:.0f} ms: Clipper-like collapses, as in the paper"
            checks.append(Check(claim, clipper.goodput < 0.1 * counts.goodput))
    return tuple(checks)


def _draw(figure: "Figure", found: Mapping[tuple[float, str], Counts]) -> None:
    axes: Axes = figure.subplots()
    slos = list(dict.fromkeys(slo for slo, _ in found))
    for name in dict.fromkeys(name for _, name in found):
        goodput = [found[slo, name].goodput for slo in slos]
        width = 2.5 if name == OURS.name else 1.2
        axes.plot([s * 1e3 for s in slos], goodput, marker="o", linewidth=width, label=name)
    axes.plot([s * 1e3 for s in slos], [ideal(s) for s in slos], "k:", label="ideal")
    for (name, slo), goodput_then in PAPER.items():
        axes.plot(slo * 1e3, goodput_then, "k*", markersize=10, label=f"{name}, in the paper")
    axes.set_xscale("log")
    axes.set_xlabel("SLO (ms)")
    axes.set_ylabel("goodput (r/s)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _draw_curves(figure: "Figure", found: Mapping[tuple[float, str], Counts]) -> None:
    names = [n for n in (OURS.name, "Clipper-like", "FCFS") if any(n == x for _, x in found)]
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        for i, slo in enumerate(dict.fromkeys(slo for slo, _ in found)):
            latencies = found[slo, name].latencies
            points = [(s * 1e3, 1 - n / latencies.count) for s, n in latencies.curve()]
            if points:
                seconds, above = zip(*points, strict=True)
                axis.plot(seconds, [max(a, 1e-5) for a in above], color=f"C{i}")
            axis.axvline(slo * 1e3, color=f"C{i}", linestyle=":", linewidth=0.9)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"{name} (SLOs dotted)", fontsize=9)
        axis.set_xlabel("latency (ms)")
    axes[0].set_ylabel("share of answers above")


def _run(lab: Lab) -> Output:
    found = compare(lab)
    disturbed, checks = disturb(lab)
    return Output((*found.tables, disturbed), found.pictures, (*found.checks, *checks))


SLO = Experiment(
    "clockwork-slo",
    "Clockwork's Fig. 5: goodput by SLO under overload, beside other schedulers",
    _run,
    seeds=5,
)

"""`clockwork-trace`: a fleet of 4,026 models on 24 devices (Clockwork, §6.5, Fig. 9 and 10)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher.schedulers.clockwork.policy import Clockwork
from roma.device.models_table import TABLE_1, offers
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clockwork.bound import unservable
from roma.lab.experiments.clockwork.counts import Counts, Latencies
from roma.lab.experiments.clockwork.functions import sends
from roma.lab.experiments.clockwork.runs import PAGES, milliseconds
from roma.lab.experiments.intervals import interval, interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Ended, FleetPlan, Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPIES = 671
"""Copies of each model of Table 1: 4,026 in all, as many as the paper's 66 copies of 61 models."""

DEVICES = 24
"""Two in each of twelve workers."""

RATE = 5000.0
"""Requests per second. The paper's 9,638 are of other models: half of the six of Table 1, the only
ones available, are among the slowest of its 61."""

SLO = 0.1
BEGIN = 10.0
"""Seconds until popular models are loaded."""

SECONDS = 60.0
BUCKET = 10.0
QUANTILES = (0.5, 0.99, 0.999, 0.9999)

PAPER: Mapping[str, tuple[float, float]] = {"INFER": (55e-6, 144e-6), "LOAD": (348e-6, 431e-6)}
"""p99 of the time that actions took longer and shorter than predicted, in seconds (§6.5, Fig.
10)."""

NANOSECOND = 1e-9

PAPER_COMPLETION = 1e-3
"""p99 of the error of an INFER's predicted end, in seconds (§6.5)."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A run."""

    seed: int
    traces: Path | None
    copies: int = COPIES
    devices: int = DEVICES
    rate: float = RATE
    seconds: float = SECONDS


class Errors:
    """Prediction errors: `late` where the action took longer, `early` where it took shorter."""

    __slots__ = ("early", "late")

    def __init__(self) -> None:
        self.late, self.early = Latencies(NANOSECOND), Latencies(NANOSECOND)

    def add(self, error: float) -> None:
        """Record the seconds beyond the prediction; an exact one counts as early by 0."""
        (self.late if error > 0 else self.early).add(abs(error))

    def merge(self, other: "Errors") -> None:
        """Add another run's errors."""
        self.late.merge(other.late)
        self.early.merge(other.early)


class TraceResult:
    """A run, by stretches of time; cold models are counted once per stretch."""

    def __init__(self, job: TraceJob) -> None:
        buckets = round(job.seconds / BUCKET)
        edges = [BEGIN + i * BUCKET for i in range(buckets + 1)]
        self.buckets = [Counts(a, b) for a, b in itertools.pairwise(edges)]
        self.cold: list[set[str]] = [set() for _ in self.buckets]
        self.batches = [[0, 0] for _ in self.buckets]
        """Requests answered and executions."""
        self.unservable = 0.0
        """The share of the work that no scheduler could do in time."""
        self.errors = {"INFER": Errors(), "LOAD": Errors(), "INFER, its end": Errors()}

    def place(self, time: float) -> int | None:
        """Return the index of a time's stretch, None if it is not counted."""
        i = int((time - BEGIN) / BUCKET)
        return i if time >= BEGIN and i < len(self.buckets) else None


def simulate(job: TraceJob) -> TraceResult:
    """Run a fleet."""
    found = TraceResult(job)

    def on_end(ended: Ended) -> None:
        i = found.place(ended.ended)
        if i is None:
            return
        found.buckets[i].add(ended)
        found.batches[i][0] += ended.reason is None
        if ended.is_cold:
            found.cold[i].add(ended.model)

    def on_action(action: Prediction) -> None:
        i = found.place(action.end)
        if i is None:
            return
        kind = "LOAD" if action.is_load else "INFER"
        found.errors[kind].add(action.duration - action.expected)
        if not action.is_load:
            found.batches[i][1] += 1
            found.errors["INFER, its end"].add(action.end - action.expected_end)

    models = offers(dict.fromkeys(TABLE_1, job.copies))
    plan = FleetPlan(models, job.devices, PAGES, SLO, Clockwork, seed=job.seed)
    fleet = Fleet(plan, on_end=on_end, on_action=on_action)
    for model, times in sends(tuple(models), job.rate, seed=job.seed, traces=job.traces):
        fleet.send(model, times)
    end = BEGIN + job.seconds
    fleet.run(end)
    asked = sends(tuple(models), job.rate, seed=job.seed, traces=job.traces)
    found.unservable = unservable(asked, models, devices=job.devices, slo=SLO, begin=BEGIN, end=end)
    return found


COLUMNS = (
    Column("seconds"),
    Column("offered r/s", ".0f"),
    Column("goodput r/s", ".0f"),
    Column("goodput ±", ".0f"),
    Column("refused", ".3%"),
    Column("refused ±", ".3%"),
    Column("p50 ms", ".1f"),
    Column("p99 ms", ".1f"),
    Column("max ms", ".1f"),
    Column("batch", ".1f"),
    Column("cold models", ".0f"),
    Column("cold r/s", ".0f"),
    Column("cold", ".1%"),
)

ERROR_COLUMNS = (
    Column("prediction"),
    Column("error"),
    Column("share", ".1%"),
    *(Column(f"p{q * 100:g} ms", ".3f") for q in QUANTILES),
    Column("max ms", ".3f"),
    Column("p99 ± ms", ".3f"),
    Column("paper's p99 ms", ".3f"),
)


def compare(lab: Lab, job: TraceJob | None = None) -> Output:
    """Return the fleet's run by stretches of time, and the errors of its predictions."""
    base = job or TraceJob(0, None)
    jobs = [replace(base, seed=seed, traces=lab.traces) for seed in lab.seeds]
    runs: list[TraceResult] = lab.map(simulate, jobs)
    rows = [_row(runs, i) for i in range(len(runs[0].buckets))]
    source = "its shapes of functions from the recorded sample" if lab.traces else "synthetic"
    table = Table(
        "clockwork-trace",
        "A fleet of models under a trace of functions (Fig. 9)",
        COLUMNS,
        rows,
        f"{base.copies * len(TABLE_1)} models of Table 1 on {base.devices} devices, SLO "
        f"{SLO * 1e3:.0f} ms, {base.rate:.0f} r/s on average ({source}); a second stands for a "
        "minute of the trace. Cold: the model was on no device when the request came. In the "
        "paper, at 9,638 r/s: 25 % of the models each minute, 1.3 % of the requests. "
        f"{interval_note(len(lab.seeds))}",
    )
    errors = Table(
        "clockwork-trace-errors",
        "What actions took beyond and below their prediction (Fig. 10)",
        ERROR_COLUMNS,
        list(_error_rows(runs)),
        f"Of the actions of {len(runs)} runs together. {interval_note(len(lab.seeds))}",
    )
    picture = Picture("clockwork-trace", lambda figure: _draw(figure, rows), (9.0, 7.5))
    return Output((table, errors), (picture,), _checks(runs))


def _row(runs: Sequence[TraceResult], i: int) -> tuple[Cell, ...]:
    counts = Counts.of_runs([run.buckets[i] for run in runs])
    latencies, answered = counts.latencies, sum(run.batches[i][0] for run in runs)
    return (
        f"{counts.begin:.0f}-{counts.end:.0f}",
        counts.total / counts.seconds,
        counts.goodput,
        counts.half("goodput"),
        counts.refused_share,
        counts.half("refused_share"),
        milliseconds(latencies.quantile(0.5)),
        milliseconds(latencies.quantile(0.99)),
        milliseconds(latencies.largest),
        answered / max(1, sum(run.batches[i][1] for run in runs)),
        sum(len(run.cold[i]) for run in runs) / len(runs),
        counts.cold / counts.seconds,
        counts.cold / max(1, counts.total),
    )


def _error_rows(runs: Sequence[TraceResult]) -> Sequence[tuple[Cell, ...]]:
    rows = []
    for kind in runs[0].errors:
        errors = Errors()
        for run in runs:
            errors.merge(run.errors[kind])
        late, early = PAPER.get(kind, (PAPER_COMPLETION, None))
        total = max(1, errors.late.count + errors.early.count)
        for name, found, alone, theirs in (
            ("longer", errors.late, [run.errors[kind].late for run in runs], late),
            ("shorter", errors.early, [run.errors[kind].early for run in runs], early),
        ):
            half = interval([one.quantile(0.99) or 0.0 for one in alone])[1]
            times = [*map(found.quantile, QUANTILES), found.largest, half, theirs]
            rows.append((kind, name, found.count / total, *map(milliseconds, times)))
    return rows


def _checks(runs: Sequence[TraceResult]) -> tuple[Check, ...]:
    total = Counts.of_runs([Counts.of_stretches(run.buckets) for run in runs])
    answered = total.good + total.late
    share = total.good / max(1, answered)
    lost = sum(run.unservable for run in runs) / len(runs)
    return (
        Check(
            f"{share:.4%} of {answered} admitted requests within {SLO * 1e3:.0f} ms (≥ 99.999 %)",
            share >= 0.99999,
        ),
        Check(
            f"{total.good / max(1, total.total):.4%} of all {total.total} requests within "
            f"{SLO * 1e3:.0f} ms (≥ 99.9 %; no scheduler could do {lost:.2%} of their work)",
            total.good >= 0.999 * total.total,
            is_aim=True,
        ),
    )


def _draw(figure: "Figure", rows: Sequence[tuple[Cell, ...]]) -> None:
    axes = figure.subplots(4, 1, sharex=True)
    columns = dict(zip([c.name for c in COLUMNS], zip(*rows, strict=True), strict=True))
    time = columns["seconds"]
    panels = (
        ("r/s", ("offered r/s", "goodput r/s")),
        ("latency (ms)", ("p50 ms", "p99 ms", "max ms")),
        ("mean batch", ("batch",)),
        ("cold starts", ("cold models", "cold r/s")),
    )
    for axis, (label, names) in zip(axes, panels, strict=True):
        for name in names:
            axis.plot(time, columns[name], label=name, marker=".")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)
    axes[-1].set_xlabel("time (s), each a minute of the trace")


TRACE = Experiment(
    "clockwork-trace",
    "Clockwork's Fig. 9 and 10: 4,026 models on 24 devices under a trace, and its predictions",
    compare,
    seeds=5,
)

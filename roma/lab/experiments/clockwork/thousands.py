"""`clockwork-thousands`: one device serves 3,601 models (Clockwork, §6.2, Fig. 6).

Major: 1,000 r/s spread evenly over the active models. Their number grows to 18 times what the
device's memory holds. Minor: one model at 200 r/s all the time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING

from dispatcher.schedulers.clockwork.policy import Clockwork
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.clockwork.runs import PAGES, milliseconds, resnets
from roma.lab.experiments.intervals import interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Ended, FleetPlan, Prediction
from roma.lab.sim.scenario import seed_of
from roma.workload.arrivals import poisson_rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = 3600
ACTIVATED = 12
"""Models per second; the paper activates one per second, over an hour."""

ALONE = 5.0
"""Seconds during which only Minor sends; the paper's five minutes."""

AFTER = 55.0
"""Seconds with all models active, to reach the steady state."""

MAJOR_RATE = 1000.0
MINOR_RATE = 200.0
SLO = 0.1
BUCKET = 20.0

FITTING = 201
"""Models that fit the paper's device (§6.2); 1984 pages of 16 MB would hold 283."""

PAPER_COLD = 0.7
"""Share of cold starts at the end (§6.2)."""

PAPER_LATENCY = 0.02
"""Seconds: Minor's mean latency once the PCIe bus is the bottleneck (§6.2)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A run: a device of `pages`, and `models`, of which `step` are activated per second."""

    name: str
    pages: int
    models: int = MODELS
    step: int = ACTIVATED
    after: float = AFTER
    bucket: float = BUCKET
    seed: int = 1

    @property
    def end(self) -> float:
        """The end of the run, in seconds."""
        return ALONE + self.models / self.step + self.after


SETUPS = (
    Setup(f"{FITTING} models fit", FITTING * 7),
    Setup(f"{PAGES} pages", PAGES),
)


@dataclass(slots=True)
class Bucket:
    """Counts of a stretch of time; busy times in seconds."""

    major: Counts
    minor: Counts
    executing: float = 0.0
    loading: float = 0.0
    loads: int = 0


@dataclass(slots=True)
class Stretches:
    """A run by stretches of time, the last of which ends with the run."""

    width: float
    end: float
    found: list[Bucket] = field(default_factory=list)

    def at(self, time: float) -> Bucket:
        """Return the stretch of a time."""
        place = int(time / self.width)
        while len(self.found) <= place:
            begin = len(self.found) * self.width
            end = min(begin + self.width, self.end)
            self.found.append(Bucket(Counts(begin, end), Counts(begin, end)))
        return self.found[place]


def rates(index: int, setup: Setup) -> Iterator[float]:
    """Yield the rate of one of Major's models in each successive second."""
    begins = int(ALONE) + index // setup.step
    steps = range(index // setup.step + 1, setup.models // setup.step + 1)
    shared = (MAJOR_RATE / (n * setup.step) for n in steps)
    return chain(repeat(0.0, begins), shared, repeat(MAJOR_RATE / setup.models))


def simulate(setup: Setup) -> list[Bucket]:
    """Run one setup."""
    buckets = Stretches(setup.bucket, setup.end)
    major, minor = resnets(setup.models, "major"), resnets(1, "minor")

    def on_end(ended: Ended) -> None:
        bucket = buckets.at(ended.ended)
        (bucket.minor if ended.model in minor else bucket.major).add(ended)

    def on_action(action: Prediction) -> None:
        bucket = buckets.at(action.end)
        if action.is_load:
            bucket.loading += action.duration
            bucket.loads += 1
        else:
            bucket.executing += action.duration

    plan = FleetPlan({**major, **minor}, 1, setup.pages, SLO, Clockwork, seed=setup.seed)
    fleet = Fleet(plan, on_end=on_end, on_action=on_action)
    fleet.send("minor-0", poisson_rates(repeat(MINOR_RATE), seed=seed_of(setup.seed, 0)))
    for i, model in enumerate(major):
        fleet.send(model, poisson_rates(rates(i, setup), seed=seed_of(setup.seed, i + 1)))
    fleet.run(setup.end)
    return buckets.found


COLUMNS = (
    Column("device"),
    Column("s", ".0f"),
    Column("active", "d"),
    Column("Major r/s", ".0f"),
    Column("Major ±", ".0f"),
    Column("Minor r/s", ".0f"),
    Column("Minor ±", ".0f"),
    Column("Major mean ms", ".1f"),
    Column("Minor mean ms", ".1f"),
    Column("max ms", ".1f"),
    Column("cold answers", ".0%"),
    Column("cold ±", ".1%"),
    Column("GPU", ".0%"),
    Column("PCIe", ".0%"),
)

NOTE = (
    f"{MODELS} copies of ResNet50 and one more on one device, SLO {SLO * 1e3:.0f} ms. "
    f"{ACTIVATED} models are activated each second, over {MODELS / ACTIVATED:.0f} s; the paper "
    "activates one each second over an hour, so the newcomers' own loads weigh twelve times as "
    "much here until the last has come. Goodput and means of each stretch; cold: the share of "
    "Major's answers in time whose model was not loaded when the request came. In the paper "
    f"{FITTING} models fit the device."
)


def compare(lab: Lab, setups: Sequence[Setup] = SETUPS) -> Output:
    """Return each setup by stretches of time."""
    runs = lab.by_seed(simulate, setups, lambda setup, seed: replace(setup, seed=seed))
    found = dict(zip(setups, map(_together, runs), strict=True))
    rows = [_row(setup, bucket) for setup, buckets in found.items() for bucket in buckets]
    title = "Thousands of models on one device (Fig. 6)"
    note = f"{NOTE} {interval_note(len(lab.seeds))}"
    table = Table("clockwork-thousands", title, COLUMNS, rows, note)
    picture = Picture("clockwork-thousands", lambda figure: _draw(figure, found), (9.0, 7.5))
    checks = [check for setup, buckets in found.items() for check in _checks(setup, buckets)]
    return Output((table,), (picture,), tuple(checks))


def _together(runs: Sequence[list[Bucket]]) -> list[Bucket]:
    return [
        Bucket(
            Counts.of_runs([b.major for b in same]),
            Counts.of_runs([b.minor for b in same]),
            sum(b.executing for b in same),
            sum(b.loading for b in same),
            sum(b.loads for b in same),
        )
        for same in zip(*runs, strict=True)
    ]


def _row(setup: Setup, bucket: Bucket) -> tuple[Cell, ...]:
    end, seconds = bucket.major.end, bucket.major.seconds
    major, minor = bucket.major.latencies, bucket.minor.latencies
    return (
        setup.name,
        end,
        min(setup.models, max(0, int(end - ALONE) * setup.step)),
        bucket.major.goodput,
        bucket.major.half("goodput"),
        bucket.minor.goodput,
        bucket.minor.half("goodput"),
        milliseconds(major.mean),
        milliseconds(minor.mean),
        milliseconds(max(major.largest, minor.largest)),
        bucket.major.cold_share,
        bucket.major.half("cold_share"),
        bucket.executing / seconds,
        bucket.loading / seconds,
    )


def _checks(setup: Setup, buckets: Sequence[Bucket]) -> list[Check]:
    last, cold = buckets[-1], buckets[-1].major.cold_share
    late = sum(b.major.late + b.minor.late for b in buckets)
    worst = max(max(b.major.latencies.largest, b.minor.latencies.largest) for b in buckets)
    goodput = [b.minor.goodput for b in buckets]
    lowest, minor = min(goodput), goodput[-1]
    mean = last.minor.latencies.mean or 0.0
    return [
        Check(
            f"{setup.name}: {late} answers after {SLO * 1e3:.0f} ms, the slowest after "
            f"{worst * 1e3:.1f} ms",
            late == 0,
        ),
        Check(
            f"{setup.name}: {cold:.0%} of Major's answers are cold starts at the end "
            f"(the paper: {PAPER_COLD:.0%})",
            abs(cold - PAPER_COLD) <= 0.1,
        ),
        Check(
            f"{setup.name}: Minor has {lowest:.0f} r/s at least and {minor:.0f} r/s at the end, "
            f"{mean * 1e3:.0f} ms on average (the paper: near {MINOR_RATE:.0f} r/s, "
            f"{PAPER_LATENCY * 1e3:.0f} ms)",
            minor >= 0.95 * MINOR_RATE,
        ),
    ]


def _draw(figure: "Figure", found: Mapping[Setup, Sequence[Bucket]]) -> None:
    axes = figure.subplots(4, len(found), sharex=True, sharey="row", squeeze=False)
    for column, (setup, buckets) in enumerate(found.items()):
        rows = [_row(setup, bucket) for bucket in buckets]
        _, time, _, *series = zip(*rows, strict=True)
        major, _, minor, _, major_ms, minor_ms, worst, cold, _, gpu, pcie = series
        goodput, latency, colds, busy = axes[:, column]
        goodput.plot(time, major, label="Major")
        goodput.plot(time, minor, label="Minor")
        latency.plot(time, major_ms)
        latency.plot(time, minor_ms)
        latency.plot(time, worst, color="grey", linewidth=0.8, label="longest")
        colds.plot(time, cold)
        colds.axhline(PAPER_COLD, color="grey", linestyle=":", label="the paper's end")
        busy.plot(time, gpu, color="C2", label="GPU")
        busy.plot(time, pcie, color="C3", label="PCIe")
        goodput.set_title(setup.name, fontsize=10)
        busy.set_xlabel(f"time (s), {setup.step} more models each second")
    names = ("goodput (r/s)", "latency (ms)", "cold answers", "utilisation")
    for axis, name in zip(axes[:, 0], names, strict=True):
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)


THOUSANDS = Experiment(
    "clockwork-thousands",
    "Clockwork's Fig. 6: 3,601 models on a device that holds a few hundred",
    compare,
    seeds=5,
)

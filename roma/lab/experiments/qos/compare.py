"""`qos-single` and `qos-cluster`: the paper's policies and ours on its hours (Tables 2 to 5).

Every policy gets the same queries. The paper's numbers stand beside ours. The differences in the
setting, and the choice of its load, are described in `roma.lab.experiments.qos.setting`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from dispatcher.schedulers.qos.base import QualityScheduler
from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.learned import QosRl
from dispatcher.schedulers.qos.optimal import QosOpt
from roma.config.policy_file import Policy
from roma.config.scheduling import QualityConfig
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Picture, Table
from roma.lab.experiments.intervals import interval, interval_note
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.qos import bounds, paper
from roma.lab.experiments.qos.jobs import learned
from roma.lab.experiments.qos.runs import Dispatch, Scores, Trial, run, watch
from roma.lab.experiments.qos.setting import (
    CLUSTER,
    SINGLE,
    SPEEDS,
    TESTS,
    TINY,
    TUNED,
    Part,
    Queries,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALIKE: Final = 0.015
"""Largest deviation of `fixed` from the paper's: its load was fitted with other queries."""
CLOSE: Final = 0.01
"""Largest deviation of `qos` from the paper's heuristic."""
SHARE: Final = 0.98
"""Share of the bound that `qos-opt` should reach."""

SAMPLES: Final = (0.15, 0.5, 0.85)
SAMPLE: Final = 60.0
"""Position in each part, and length in seconds, of the sample for the bound. A short sample makes
the bound loose: devices are free before it, and no query comes after it."""

SHOWN: Final = 600.0
"""Seconds shown in the figure of batches, as in Fig. 7."""

SHARES: Final = np.linspace(0, 1, 1001)
"""Shares of queries at which the figure of answers is drawn."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its parameters."""

    name: str
    policy: type[QualityScheduler]
    options: QualityConfig
    learned: Policy | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run.

    `sampled` is the mean quality in each sample for the bound; `late` and `quality` are what a
    share of the queries, each of `SHARES`, does not exceed.
    """

    mean: float
    deviation: float
    tiny: float
    sampled: tuple[float, ...]
    late: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    quality: "np.ndarray[tuple[int], np.dtype[np.float64]]"


def contenders(kinds: tuple[str, ...]) -> tuple[Contender, ...]:
    """Return the policies compared on some devices."""
    alpha, beta = TUNED[kinds]
    tuned = QualityConfig(alpha=alpha, beta=beta)
    return (
        Contender("fixed", Fixed, QualityConfig()),
        Contender("qos", Qos, tuned),
        Contender("qos-rl", QosRl, QualityConfig(), learned(kinds)),
        Contender("qos-opt", QosOpt, QualityConfig()),
    )


def compare(
    lab: Lab, kinds: tuple[str, ...], seconds: int | None = None, *, busy: bool = False
) -> Output:
    """Run all policies on every part of the day, or on its first `seconds`.

    `busy`: under the load that makes `fixed` as bad on the cluster as it was in the paper.
    """
    runners = contenders(kinds)
    trials = {
        (r.name, part.name): _trial(lab, r, kinds, part, seconds, busy=busy)
        for r in runners
        for part in TESTS
    }
    outcomes = lab.by_seed(_outcome, list(trials.values()), lambda t, seed: replace(t, seed=seed))
    found = dict(zip(trials, outcomes, strict=True))
    limits = _limits(lab, trials, found)
    name = "qos-single" if kinds == SINGLE else "qos-busy" if busy else "qos-cluster"
    means: list[tuple[Cell, ...]] = []
    shares: list[tuple[Cell, ...]] = []
    for r in runners:
        runs = [found[r.name, part.name] for part in TESTS]
        means.append((r.name, *(f"{_mean(o.mean for o in some)} ({_sd(some)})" for some in runs)))
        tiny = (x for some in runs for x in interval([100 * o.tiny for o in some]))
        shares.append((r.name, *tiny))
        if r.name in paper.QUALITY[kinds]:
            known = zip(paper.QUALITY[kinds][r.name], paper.DEVIATION[kinds][r.name], strict=True)
            means.append((f"{r.name}, paper", *(f"{mean:.3f} ({sd:.3f})" for mean, sd in known)))
            tiny = (x for share in paper.TINY[kinds][r.name] for x in (100 * share, None))
            shares.append((f"{r.name}, paper", *tiny))
    if kinds == SINGLE:
        ours = [trials["qos-opt", part.name] for part in TESTS]
        best = lab.map(_in_order, ours)
        means.append(("best in order of arrival", *(f"{mean:.3f}" for mean in best)))
    for i, row in enumerate(("bound, in samples", "qos-opt, in the same")):
        means.append((row, *(f"{limits[part.name][i]:.3f}" for part in TESTS)))
    load = ", ".join(f"{p.name} {trials['fixed', p.name].load:.1f}/s" for p in TESTS)
    columns = tuple(Column(p.name) for p in TESTS)
    tables = (
        Table(
            f"{name}-quality",
            "Mean (SD) response quality",
            (Column("policy"), *columns),
            means,
            f"Mean load: {load}; qos with α = {TUNED[kinds][0]:g}, β = {TUNED[kinds][1]:g}. "
            f"{interval_note(len(lab.seeds))} The SD is that of single answers. The rows "
            f"below qos-opt are of seed {lab.seeds[0]}.",
        ),
        Table(
            f"{name}-tiny",
            "Queries answered by the tiny model, %",
            (Column("policy"), *(Column(n, ".1f") for p in TESTS for n in (p.name, "±"))),
            shares,
            interval_note(len(lab.seeds)),
        ),
    )
    shown = {r.name: trials[r.name, TESTS[0].name] for r in runners}
    pictures = [
        Picture(
            f"{name}-cdf", partial(_draw_cdf, shown={n: found[n, TESTS[0].name][0] for n in shown})
        )
    ]
    if kinds == SINGLE:
        chosen = [n for n in shown if n != "fixed"]
        batches = {n: watch(_short(shown[n]))[1] for n in chosen}
        pictures.append(Picture(f"{name}-batches", partial(_draw_batches, batches=batches)))
    return Output(tables, () if busy else tuple(pictures), _checks(kinds, found, limits))


def _trial(
    lab: Lab,
    runner: Contender,
    kinds: tuple[str, ...],
    part: Part,
    seconds: int | None,
    *,
    busy: bool,
) -> Trial:
    return Trial(
        runner.policy,
        runner.options,
        kinds,
        part,
        lab.seeds[0],
        lab.traces,
        seconds,
        rate=part.busy if busy else None,
        speed=SPEEDS[kinds],
        learned=runner.learned,
    )


def _outcome(trial: Trial) -> Outcome:
    """Simulate a trial; keep its figures, for the scores of all trials would fill the memory."""
    scores = run(trial)
    late, quality = (np.quantile(values, SHARES) for values in (scores.late, scores.quality))
    sampled = tuple(_within(scores, *_sample(trial, at)) for at in SAMPLES)
    return Outcome(scores.mean, scores.deviation, scores.tiny, sampled, late, quality)


def _mean(values: Iterable[float]) -> str:
    """Return the mean over seeds as text, with half of its interval."""
    mean, half = interval(list(values))
    return f"{mean:.3f}" if half is None else f"{mean:.3f} ± {half:.3f}"


def _sd(runs: Sequence[Outcome]) -> str:
    """Return the standard deviation within runs as text."""
    return f"{math.sqrt(fmean(o.deviation**2 for o in runs)):.3f}"


def _short(trial: Trial) -> Trial:
    return replace(trial, seconds=int(SHOWN), rate=None, speed=1)


def _limits(
    lab: Lab,
    trials: Mapping[tuple[str, str], Trial],
    found: Mapping[tuple[str, str], Sequence[Outcome]],
) -> dict[str, tuple[float, float]]:
    """Return, by part, the bound and what `qos-opt` reaches for the same queries.

    Of the first seed: the bounds of a seed take minutes.
    """
    jobs = [(trials["qos-opt", part.name], at) for part in TESTS for at in SAMPLES]
    best = iter(lab.map(_priced, jobs))
    limits = {part.name: fmean(next(best) for _ in SAMPLES) for part in TESTS}
    reached = {name: fmean(found["qos-opt", name][0].sampled) for name in limits}
    return {name: (limit, reached[name]) for name, limit in limits.items()}


def _in_order(trial: Trial) -> float:
    return bounds.in_order(trial.queries(), trial.kinds[0])


def _sample(trial: Trial, at: float) -> tuple[float, float]:
    """Return the begin and end of a sample."""
    length = trial.seconds or (trial.part.end - trial.part.begin) * 3600 / trial.speed
    sample = min(SAMPLE, length / 5)
    begin = at * (length - sample)
    return begin, begin + sample


def _priced(job: tuple[Trial, float]) -> float:
    trial, at = job
    asked, (begin, end) = trial.queries(), _sample(trial, at)
    chosen = (asked.sent >= begin) & (asked.sent < end)
    return bounds.priced(Queries(asked.sent[chosen], asked.arrived[chosen]), trial.kinds)


def _within(scores: Scores, begin: float, end: float) -> float:
    """Return the mean quality of the queries that were sent in between."""
    chosen = (scores.sent >= begin) & (scores.sent < end)
    return float(scores.quality[chosen].mean())


def _checks(
    kinds: tuple[str, ...],
    found: Mapping[tuple[str, str], Sequence[Outcome]],
    limits: Mapping[str, tuple[float, float]],
) -> tuple[Check, ...]:
    checks: list[Check] = []
    for i, part in enumerate(TESTS):
        fixed, qos, learned, best = (
            fmean(o.mean for o in found[name, part.name])
            for name in ("fixed", "qos", "qos-rl", "qos-opt")
        )
        known = paper.QUALITY[kinds]
        limit, reached = limits[part.name]
        claims = (
            (f"qos-rl {learned:.3f} ≥ qos {qos:.3f}", learned >= qos),
            (f"qos-opt {best:.3f} ≥ qos-rl {learned:.3f}", best >= learned),
        )
        aims = (
            (f"fixed {fixed:.3f} is the paper's {known['fixed'][i]:.3f} (± {ALIKE:g})",
             abs(fixed - known["fixed"][i]) <= ALIKE),
            (f"qos {qos:.3f} ≥ the paper's heuristic {known['qos'][i]:.3f} - {CLOSE:g}",
             qos >= known["qos"][i] - CLOSE),
            (f"qos-rl {learned:.3f} ≥ the paper's RL {known['qos-rl'][i]:.3f}",
             learned >= known["qos-rl"][i]),
            (f"qos-opt reaches {reached / limit:.3f} of the bound (≥ {SHARE:g})",
             reached >= SHARE * limit),
        )  # fmt: skip
        checks += [Check(f"{part.name}: {claim}", holds) for claim, holds in claims]
        checks += [Check(f"{part.name}: {aim}", holds, is_aim=True) for aim, holds in aims]
    return tuple(checks)


def _draw_cdf(figure: "Figure", shown: Mapping[str, Outcome]) -> None:
    """Draw Fig. 6: the times of answers, and their values."""
    late, worth = figure.subplots(1, 2)
    for name, outcome in shown.items():
        late.plot(outcome.late, SHARES, label=name)
        worth.plot(outcome.quality, SHARES, label=name)
    late.set_xlabel("end after the soft deadline, s")
    late.set_xlim(-1.0, 1.0)
    worth.set_xlabel("quality of the answer")
    late.set_ylabel(f"share of queries, {TESTS[0].name}")
    late.legend()


def _draw_batches(figure: "Figure", batches: Mapping[str, Sequence[Dispatch]]) -> None:
    """Draw Fig. 7: ten minutes of batches, by size and variant."""
    axes = figure.subplots(len(batches), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, found) in zip(axes, batches.items(), strict=True):
        for variant, color in (("full", "tab:blue"), (TINY.name, "tab:red")):
            mine = [d for d in found if d.variant == variant]
            axis.scatter([d.time for d in mine], [d.count for d in mine], s=4, color=color)
        axis.set_ylabel(f"{name}\nqueries per batch")
    axes[-1].set_xlabel("s (blue: full model, red: tiny model)")


QOS_SINGLE = Experiment(
    "qos-single",
    "Batch size and variant on one GPU: the QoS paper's Tables 2 and 3, beside a bound",
    lambda lab: compare(lab, SINGLE),
    seeds=5,
)
QOS_BUSY = Experiment(
    "qos-busy",
    "Ten GPUs under a load that makes the baseline as bad as it was in the paper",
    lambda lab: compare(lab, CLUSTER, busy=True),
    seeds=5,
)
QOS_CLUSTER = Experiment(
    "qos-cluster",
    "The same on ten GPUs of two kinds: Tables 4 and 5",
    lambda lab: compare(lab, CLUSTER),
    seeds=5,
)

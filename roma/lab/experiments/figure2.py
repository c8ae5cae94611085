"""`roma-figure2`: response time and cores over time, all apps (the paper's Figure 2)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roma.lab.experiments import systems
from roma.lab.experiments.base import Column, Experiment, Output, Picture, Table
from roma.lab.experiments.lab import Lab, LabCase
from roma.lab.experiments.workloads import ALL_APPS
from roma.lab.sim.result import SimulationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEMS = (systems.RR_RULES, systems.ROMA_CODE, systems.SHIPPED_ENGINE)


def _run(lab: Lab) -> Output:
    summaries = lab.run([LabCase(ALL_APPS, system, record=True) for system in SYSTEMS])
    results = {s.name: found.results[0] for s, found in zip(SYSTEMS, summaries, strict=True)}
    rows = [
        (name, m.model, m.sla, m.window_mean, m.window_worst, m.windows_over)
        for name, result in results.items()
        for m in result.models
    ]
    table = Table(
        "roma-figure2",
        "All apps: response time by second",
        (
            Column("system"),
            Column("model"),
            Column("SLA s", ".2f"),
            Column("mean s", ".3f"),
            Column("max s", ".2f"),
            Column("seconds over SLA", "d"),
        ),
        rows,
    )
    picture = Picture("roma-figure2", lambda figure: _draw(figure, results), (12.0, 6.5))
    return Output((table,), (picture,))


def _draw(figure: "Figure", results: Mapping[str, SimulationResult]) -> None:
    axes = figure.subplots(2, len(results), sharex=True, sharey="row", squeeze=False)
    for column, (name, result) in enumerate(results.items()):
        above, below = axes[0][column], axes[1][column]
        for i, model in enumerate(result.models):
            seconds, means = zip(*model.series, strict=True)
            above.plot(seconds, means, color=f"C{i}", linewidth=1, label=model.model)
            above.axhline(model.sla, color=f"C{i}", linewidth=0.8, linestyle=":")
            time, cores = _cores(result, model.model)
            below.plot(time, cores, color=f"C{i}", linewidth=1)
        total = f"{result.core_seconds:.0f} core-s, {result.late_share:.1%} late"
        above.set_title(f"{name}: {total}", fontsize=10)
        below.set_xlabel("time (s)")
    axes[0][0].set_ylim(0, 1.5)
    axes[0][0].set_ylabel("response time (s), SLA dotted")
    axes[1][0].set_ylabel("cores applied, both workers")
    axes[0][-1].legend(fontsize=8)


def _cores(result: SimulationResult, model: str) -> tuple[list[float], list[float]]:
    """Return a model's applied cores, summed over its executables, by tick."""
    total: dict[float, float] = {}
    for sample in result.samples:
        if sample.executable.rpartition("@")[0] == model:
            total[sample.time] = total.get(sample.time, 0.0) + sample.applied
    return list(total), list(total.values())


FIGURE2 = Experiment(
    "roma-figure2",
    "Response time and cores over time: rules, the paper's law and the defaults on all apps",
    _run,
    seeds=1,
)

"""`robustness`: promises under disturbances that the law does not know of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roma.lab.experiments import systems
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Table, figure_columns
from roma.lab.experiments.intervals import interval_note
from roma.lab.experiments.lab import CaseSummary, Lab, LabCase
from roma.lab.experiments.workloads import ALL_APPS, NOISY, Workload
from roma.lab.sim.scenario import ExecutorFault, SupervisorFault

WORKLOADS = (ALL_APPS, NOISY)

SYSTEMS = (
    systems.SHIPPED,
    systems.SHIPPED_ENGINE,
    replace(systems.SHIPPED_ENGINE, name="pi", law="pi", statistic="mean", deadline=1.0),
    systems.ROMA_CODE,
)

TOLERATED = 0.05
"""Late share that the defaults may reach under a disturbance that leaves enough cores."""


@dataclass(frozen=True, slots=True)
class Perturbation:
    """A name and its changes: fields of the scenario, or the plant's noise.

    `is_claimed`: documents claim that the defaults stay below TOLERATED.
    """

    name: str
    changes: Mapping[str, Any]
    noise: float | None = None
    is_claimed: bool = True


DISTURBANCES = (
    Perturbation("none", {}),
    Perturbation("CPU usage misread × 1/3", {"usage_error": 1 / 3}, is_claimed=False),
    Perturbation("CPU usage misread × 1/2", {"usage_error": 0.5}, is_claimed=False),
    Perturbation("CPU usage misread × 2", {"usage_error": 2.0}),
    Perturbation("CPU usage misread × 3", {"usage_error": 3.0}),
    Perturbation("actuation delay 1 s", {"actuation_delay": 1.0}),
    Perturbation("actuation delay 2 s", {"actuation_delay": 2.0}, is_claimed=False),
    Perturbation("actuation delay 3 s", {"actuation_delay": 3.0}, is_claimed=False),
    Perturbation("cost varies by 50 %", {}, noise=0.5),
    Perturbation("cost varies by 100 %", {}, noise=1.0),
    Perturbation("one GPU lost for 60 s", {"faults": (ExecutorFault(100.0, "gpu0@w1", 60.0),)}),
    Perturbation(
        "supervisor dead for 10 s, back without memory",
        {"faults": (SupervisorFault(100.0, "w1", 10.0),)},
    ),
)


def _run(lab: Lab) -> Output:
    cases = [
        LabCase(_noisier(workload, d.noise), system, d.changes)
        for workload in WORKLOADS
        for d in _fitting(workload)
        for system in SYSTEMS
    ]
    summaries = iter(lab.run(cases))
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    for workload in WORKLOADS:
        for disturbance in _fitting(workload):
            found: list[CaseSummary] = [next(summaries) for _ in SYSTEMS]
            figures = (x for s in found for x in s.figures)
            rows.append((workload.title, disturbance.name, *figures))
            checks.extend(
                Check(
                    f"{workload.title}, {disturbance.name}: {system.name} {s.late_share:.2%} late "
                    f"(tolerated {TOLERATED:.0%})",
                    s.late_share <= TOLERATED,
                    is_aim=not disturbance.is_claimed,
                )
                for system, s in zip(SYSTEMS, found, strict=True)
                if system in (systems.SHIPPED, systems.SHIPPED_ENGINE)
            )
    named = (column for system in SYSTEMS for column in figure_columns(system.name))
    columns = (Column("workload"), Column("disturbance"), *named)
    title = "Late share and core-seconds under disturbances"
    note = interval_note(len(lab.seeds))
    table = Table("robustness", title, columns, rows, note)
    return Output((table,), checks=tuple(checks))


def _fitting(workload: Workload) -> tuple[Perturbation, ...]:
    """Return the perturbations that fit: a GPU can be lost only where there is one."""
    if workload.gpus:
        return DISTURBANCES
    return tuple(d for d in DISTURBANCES if "GPU" not in d.name)


def _noisier(workload: Workload, noise: float | None) -> Workload:
    if noise is None:
        return workload
    models = tuple(
        replace(m, service=replace(m.service, noise=noise, gpu_noise=noise / 2))
        for m in workload.models
    )
    return replace(workload, models=models)


ROBUSTNESS = Experiment(
    "robustness",
    "Misread CPU usage, slow actuation, noise, a lost GPU, a dead supervisor",
    _run,
    seeds=5,
)

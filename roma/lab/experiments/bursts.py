"""Gains of burst with constant quotas and with the default law, and its cost to others.

A quota period may inherit unused quota of earlier ones (`control.cfs_burst`). Constant quotas lie
on a grid of 5 %, and the cores at which 2 % are late are interpolated, on the same requests with
burst and without.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from roma.config.models import DEFAULT_BUDGET
from roma.config.schema import Config
from roma.lab.experiments.base import Cell, Check, Column, Table
from roma.lab.experiments.intervals import cores_at, interval
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.workloads import DIURNAL, NOISY, Workload, one_worker
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.scenario import from_config
from roma.lab.sim.simulation import Simulation

BURSTS = (0.0, 1.0)
CORES = 2.0
STEP = 1.05
SERVICES = 5
"""The promise, as a multiple of a request's time on a core."""

STEADY = ((15.0, 0.020), (50.0, 0.010), (100.0, 0.005))
"""Req/s, and core-seconds of each on average; they vary by 30 %."""

SAVED = 0.10
"""Least share of the core-seconds that burst must save at 2 % late."""

SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Run:
    """A roma.yaml as a mapping; `workload`, if given, brings its requests."""

    config: Mapping[str, Any]
    burst: float
    workload: Workload | None = None


def tables(lab: Lab) -> list[tuple[Table, list[Check]]]:
    """Return the savings of burst, its effect under the default law, and that on neighbours."""
    return [_constant(lab), _default(lab), _beside(lab)]


def _simulate(job: tuple[_Run, int]) -> SimulationResult:
    run, seed = job
    config = Config.model_validate(run.config)
    scenario = replace(from_config(config, seed=seed), burst=run.burst)
    if run.workload is not None:
        scenario = replace(scenario, arrivals=run.workload.arrivals(seed))
    return Simulation(scenario).run()


def _fixed(cores: float) -> dict[str, float]:
    return {"min": cores, "max": cores}


def _steady(rate: float, cost: float, cores: float) -> dict[str, Any]:
    return one_worker(
        {"m": {"sla": {"response_time": SERVICES * cost}, "cpu": _fixed(cores)}},
        {"m": {"cost": cost, "noise": 0.3, "load": {"profile": f"{rate:g}"}}},
        cores=CORES,
        duration=SECONDS,
    )


def _lab(workload: Workload, cores: float | None) -> dict[str, Any]:
    """Return a workload of the lab with default settings, or with `cores` constant cores."""
    bounds = {} if cores is None else _fixed(cores / len(workload.models))
    models = {
        m.name: {
            "sla": {"response_time": m.response_time},
            "cpu": {"threads": max(1, round(m.service.parallelism)), **bounds},
            "profile": {"cost": m.service.cost},
        }
        for m in workload.models
    }
    plant = {
        m.name: {
            "cost": m.service.cost,
            "noise": m.service.noise,
            "parallelism": m.service.parallelism,
            "load": {"profile": "0"},
        }
        for m in workload.models
    }
    return one_worker(models, plant, cores=workload.cores, duration=workload.duration)


def _constant(lab: Lab) -> tuple[Table, list[Check]]:
    """Return the constant cores for 2 % late, without burst and with it."""
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    for rate, cost in STEADY:
        name = f"{rate:g}/s × {1000 * cost:g} ms, {SERVICES} × service"
        grid = _grid(rate * cost, CORES)
        row, saved = _compared(name, lab, [_steady(rate, cost, c) for c in grid])
        rows.append(row)
        checks.append(
            Check(
                f"{name}: burst saves {saved:.1%} of the core-seconds (≥ {SAVED:.0%})",
                saved >= SAVED,
            )
        )
    for workload in (DIURNAL, NOISY):
        grid = _grid(0.8 * sum(_need(workload)), workload.cores)
        row, _ = _compared(workload.name, lab, [_lab(workload, c) for c in grid], workload)
        rows.append(row)
    columns = (
        Column("load"),
        *(Column(name, ".3f") for name in ("cores without burst", "±")),
        *(Column(name, ".3f") for name in ("with burst", "±")),
        *(Column(name, ".1%") for name in ("saved", "±")),
    )
    title = f"Constant quotas, cores for {DEFAULT_BUDGET:.0%} late"
    return Table("promise-burst", title, columns, rows), checks


def _compared(
    name: str, lab: Lab, grid: Sequence[Mapping[str, Any]], workload: Workload | None = None
) -> tuple[tuple[Cell, ...], float]:
    """Return a row, and the mean share that is saved."""
    needs = []
    for burst in BURSTS:
        found = lab.by_seed(_simulate, [_Run(file, burst, workload) for file in grid])
        points = [[(r.late_share, r.core_seconds / r.seconds) for r in runs] for runs in found]
        needs.append([cores_at(DEFAULT_BUDGET, of_seed) for of_seed in zip(*points, strict=True)])
    saved, half = interval([1 - b / a for a, b in zip(*needs, strict=True)])
    return (name, *interval(needs[0]), *interval(needs[1]), saved, half), saved


def _grid(least: float, most: float) -> list[float]:
    steps = math.floor(math.log(most / least) / math.log(STEP))
    return [round(least * STEP**k, 3) for k in range(1, steps + 1)]


def _need(workload: Workload) -> list[float]:
    """Return the core-seconds per second of each model's requests, on average."""
    return [
        m.service.cost * sum(1 for _ in times) / workload.duration
        for m, times in zip(workload.models, workload.arrivals(1).values(), strict=True)
    ]


def _default(lab: Lab) -> tuple[Table, list[Check]]:
    """Return the results of the default law with burst and without."""
    rows: list[tuple[Cell, ...]] = []
    for workload in (DIURNAL, NOISY):
        row: list[Cell] = [workload.name]
        runs = [_Run(_lab(workload, None), burst, workload) for burst in BURSTS]
        for results in lab.by_seed(_simulate, runs):
            row += interval([r.late_share for r in results])
            row += interval([r.core_seconds / r.seconds for r in results])
        rows.append(tuple(row))
    columns = [Column("load")]
    for how in ("without burst", "with burst"):
        columns += [Column(f"late {how}", ".2%"), Column("±", ".2%")]
        columns += [Column("cores", ".3f"), Column("±", ".3f")]
    return Table("promise-burst-law", "The default law", tuple(columns), rows), []


def _beside(lab: Lab) -> tuple[Table, list[Check]]:
    """Return the effect of a neighbour that comes in bursts on a model, on a full worker."""
    models = {
        "steady": {"sla": {"response_time": 0.05}, "cpu": {**_fixed(1.0), "in_flight": 2}},
        "bursting": {"sla": {"response_time": 0.5}, "cpu": {**_fixed(1.0), "threads": 2}},
    }
    plant: dict[str, Any] = {
        "steady": {"cost": 0.010, "noise": 0.3, "load": {"profile": "60"}},
        "bursting": {
            "cost": 0.020,
            "noise": 0.3,
            "parallelism": 2.0,
            "load": {"on_off": [100.0, 0.2, 0.8]},
        },
    }
    idle = {**plant, "bursting": {"cost": 0.020, "parallelism": 2.0}}
    files = [one_worker(models, each, cores=CORES, duration=SECONDS) for each in (idle, plant)]
    rows: list[tuple[Cell, ...]] = []
    late: list[list[float]] = []
    for burst in BURSTS:
        found = lab.by_seed(_simulate, [_Run(file, burst) for file in files])
        late = [[r.models[0].late_share for r in results] for results in found]
        rise, half = interval([b - a for a, b in zip(*late, strict=True)])
        rows.append((f"{burst:g}", fmean(late[0]), fmean(late[1]), rise, half))
    columns = (
        Column("burst of both"),
        Column("late alone", ".2%"),
        Column("beside", ".2%"),
        Column("rise", ".2%"),
        Column("±", ".2%"),
    )
    title = "A model beside one that comes in bursts, all cores granted"
    beside_burst = fmean(late[1])
    claim = (
        f"beside a neighbour with burst, all cores granted: {beside_burst:.2%} late "
        f"(≤ {DEFAULT_BUDGET:.0%})"
    )
    check = Check(claim, beside_burst <= DEFAULT_BUDGET)
    return Table("promise-burst-neighbour", title, columns, rows), [check]

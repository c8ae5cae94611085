"""`promise`: promises kept by a file with models and workers only, all else at its default.

Every request counts: refused and failed ones are late. The setup is small and fully known, so that
the capacity is known: one worker, requests of a known cost. Intervals are of 95 % over the seeds
(Student's t).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from roma.config.models import DEFAULT_BUDGET
from roma.config.schema import Config
from roma.lab.experiments import bursts, ladder
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Table
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.workloads import one_worker
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.scenario import ExecutorFault, from_config
from roma.lab.sim.simulation import Simulation

CORES, COST = 2.0, 0.02
CAPACITY = CORES / COST
"""Capacity, in req/s, of the one model of `overload`."""

SERVICES = (5.0, 8.0, 12.5, 50.0)
"""Promises, as multiples of a request's time on a core."""

LOADS = (1.1, 1.3, 2.0, 3.0, 10.0)
"""Offered load, in capacities."""

SEED_OFFSET = 1000
"""Offset of the seeds: the rules of decision 17 were chosen on small ones."""

NOISES = (0.3, 1.0)
"""Coefficients of variation of a service; the claims are about the first."""

KEPT = 0.9
"""Least share of the capacity that must be answered in time."""

RISE = 0.005
"""Largest increase of the late share that a neighbour may cause."""

HEAVY_COST = 0.05
"""Core-seconds of a neighbour's request."""

CHEAP = {"cost": 0.01, "noise": 0.3, "load": {"profile": "60"}}
"""A model that needs 0.6 of the worker's 2 cores: less than a fair share beside one neighbour."""


@dataclass(frozen=True, slots=True)
class PromiseWorld:
    """A roma.yaml with its `plant` section; `down` are executables that are lost permanently."""

    models: Mapping[str, Mapping[str, Any]]
    plant: Mapping[str, Mapping[str, Any]]
    duration: float
    down: tuple[str, ...] = ()

    def config(self) -> Config:
        """Return the configuration: models and a worker, every other key at its default."""
        file = one_worker(self.models, self.plant, cores=CORES, duration=self.duration)
        return Config.model_validate(file)


def _simulate(job: tuple[PromiseWorld, int]) -> SimulationResult:
    world, seed = job
    faults = tuple(ExecutorFault(10.0, name, math.inf) for name in world.down)
    scenario = replace(from_config(world.config(), seed=SEED_OFFSET + seed), faults=faults)
    return Simulation(scenario).run()


def _overload(services: float, load: float, noise: float) -> PromiseWorld:
    return PromiseWorld(
        {"m": {"sla": {"response_time": services * COST}}},
        {"m": {"cost": COST, "noise": noise, "load": {"profile": f"{load * CAPACITY:g}"}}},
        60.0,
    )


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another model on the worker, offered `load` times its capacity on all cores."""

    load: float = 0.0
    is_down: bool = False


NEIGHBOURS: Mapping[str, Neighbour | None] = {
    "nobody": None,
    "one that is down": Neighbour(is_down=True),
    "heavy, 2 × all cores": Neighbour(2.0),
    "heavy, 5 × all cores": Neighbour(5.0),
}


def _beside(neighbour: Neighbour | None) -> PromiseWorld:
    """Return the cheap model beside a neighbour."""
    models: dict[str, Any] = {"cheap": {"sla": {"response_time": 0.1}}}
    plant: dict[str, Any] = {"cheap": CHEAP}
    if neighbour is None:
        return PromiseWorld(models, plant, 120.0)
    models["other"] = {"sla": {"response_time": 0.5}}
    rate = neighbour.load * CORES / HEAVY_COST
    plant["other"] = {"cost": HEAVY_COST, "load": {"profile": f"{rate:g}"}}
    return PromiseWorld(models, plant, 120.0, ("other@w",) if neighbour.is_down else ())


RARE = PromiseWorld(
    {"big": {"sla": {"response_time": 0.6}, "profile": {"cost": 0.25}}},
    {"big": {"noise": 0.1, "load": {"on_off": [1.0, 1.0, 60.0], "process": "paced"}}},
    1800.0,
)
"""ResNet50's cost: one request a minute, which 0.1 cores would answer after 2.5 s."""


IDLE, FIRST, LAPS = 600.0, 50, 4
"""Seconds without a request, the number of requests that follow, and the repetitions."""

IDLE_RATES = (1.0, 5.0, 10.0, 50.0)
"""Req/s of these requests, Poisson."""


def _after_idle(services: float, rate: float) -> PromiseWorld:
    on = FIRST / rate
    return PromiseWorld(
        {"m": {"sla": {"response_time": services * COST}}},
        {"m": {"cost": COST, "noise": NOISES[0], "load": {"on_off": [rate, on, IDLE]}}},
        LAPS * (IDLE + on),
    )


def _in_time(result: SimulationResult) -> float:
    (model,) = result.models
    return (model.answered - model.late) / result.seconds / CAPACITY


def _run(lab: Lab) -> Output:
    small = (_overloads(lab), _neighbours(lab), _rare(lab), _idle(lab), *bursts.tables(lab))
    return together((*small, *ladder.tables(lab)))


def together(parts: Sequence[tuple[Table, list[Check]]]) -> Output:
    """Return the tables and the claims of some parts as one output."""
    return Output(
        tuple(table for table, _ in parts), checks=tuple(c for _, checks in parts for c in checks)
    )


def _overloads(lab: Lab) -> tuple[Table, list[Check]]:
    cells = [(s, load, noise) for noise in NOISES for s in SERVICES for load in LOADS]
    found = lab.by_seed(_simulate, [_overload(*cell) for cell in cells])
    kept = {
        cell: interval([_in_time(r) for r in results])
        for cell, results in zip(cells, found, strict=True)
    }
    rows: list[tuple[Cell, ...]] = [
        (f"{s:g} × service ± {noise:.0%}", *(x for load in LOADS for x in kept[s, load, noise]))
        for noise in NOISES
        for s in SERVICES
    ]
    checks = [
        Check(
            f"SLA {services:g} × service, {load:g} × the capacity: {mean:.1%} in time "
            f"(≥ {KEPT:.0%})",
            mean >= KEPT,
        )
        for (services, load, noise), (mean, _) in kept.items()
        if noise == NOISES[0]
    ]
    table = Table(
        "promise-overload",
        "Answered in time, of the capacity, by offered load",
        (Column("promise"), *(Column(n, ".1%") for x in LOADS for n in (f"{x:g} ×", "±"))),
        rows,
        f"One model, {CORES:g} cores, {1000 * COST:g} core-ms a request, 60 s.",
    )
    return table, checks


def _neighbours(lab: Lab) -> tuple[Table, list[Check]]:
    found = lab.by_seed(_simulate, [_beside(neighbour) for neighbour in NEIGHBOURS.values()])
    late = [[r.models[0].late_share for r in results] for results in found]
    return tabled_beside("promise-neighbours", dict(zip(NEIGHBOURS, late, strict=True)))


def tabled_beside(
    name: str, late: Mapping[str, Sequence[float]], note: str = "", *, where: str = ""
) -> tuple[Table, list[Check]]:
    """Return the table of late shares by neighbour, the first one being none, and its claims."""
    alone, *_ = late.values()
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    for neighbour, here in late.items():
        if here is alone:
            rows.append((neighbour, fmean(here), None, None))
            continue
        rise, half = interval([h - a for h, a in zip(here, alone, strict=True)])
        rows.append((neighbour, fmean(here), rise, half))
        claim = f"{where}beside {neighbour}: the late share rises by {100 * rise:.2f} points"
        checks.append(Check(f"{claim} (≤ {100 * RISE:g})", rise <= RISE))
    columns = Column("beside"), Column("late", ".2%"), Column("rise", ".2%"), Column("±", ".2%")
    title = "A model that needs less than a fair share, late or refused"
    return Table(name, title, columns, rows, note), checks


def _rare(lab: Lab) -> tuple[Table, list[Check]]:
    (results,) = lab.by_seed(_simulate, [RARE])
    late, half = interval([r.models[0].late_share for r in results])
    table = Table(
        "promise-rare",
        "0.25 core-seconds within 0.6 s, after a minute of silence",
        (Column("requests", ","), Column("late", ".2%"), Column("±", ".2%")),
        [(sum(r.arrivals for r in results), late, half)],
    )
    claim = f"single requests: {late:.2%} late (≤ {DEFAULT_BUDGET:.0%})"
    return table, [Check(claim, late <= DEFAULT_BUDGET)]


def _idle(lab: Lab) -> tuple[Table, list[Check]]:
    cells = [(services, rate) for services in SERVICES for rate in IDLE_RATES]
    found = lab.by_seed(_simulate, [_after_idle(*cell) for cell in cells])
    late = {
        cell: interval([r.models[0].late_share for r in results])
        for cell, results in zip(cells, found, strict=True)
    }
    rows: list[tuple[Cell, ...]] = [
        (f"{services:g} × service", *(x for rate in IDLE_RATES for x in late[services, rate]))
        for services in SERVICES
    ]
    table = Table(
        "promise-idle",
        f"Late or refused of the first {FIRST} requests after {IDLE / 60:g} minutes of silence",
        (Column("promise"), *(Column(n, ".1%") for r in IDLE_RATES for n in (f"{r:g}/s", "±"))),
        rows,
        f"{1000 * COST:g} core-ms a request, Poisson arrivals; {LAPS} times a seed.",
    )
    checks = [
        Check(
            f"SLA {services:g} × service, {rate:g} req/s after {IDLE / 60:g} minutes of silence: "
            f"{share:.1%} of the first {FIRST} late (≤ {DEFAULT_BUDGET:.0%})",
            share <= DEFAULT_BUDGET,
            is_aim=True,
        )
        for (services, rate), (share, _) in late.items()
    ]
    return table, checks


PROMISE = Experiment(
    "promise",
    "What defaults keep in an overload, beside bad neighbours, after silence, in bursts, and from "
    "tight promises to loose ones",
    _run,
    seeds=5,
)

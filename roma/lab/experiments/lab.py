"""Runs many simulations, on every core of this machine, and averages them over seeds."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from roma.lab.experiments.clairvoyant import Bound, Infeasible, ModelLoad, bound
from roma.lab.experiments.intervals import interval
from roma.lab.experiments.systems import System
from roma.lab.experiments.workloads import Workload
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.simulation import Simulation
from roma.telemetry.orphans import begin_in_pool, ended_on_error


@dataclass(frozen=True, slots=True)
class LabCase:
    """A workload under one system; `changes` replace fields of the scenario (faults, delay…)."""

    workload: Workload
    system: System
    changes: Mapping[str, Any] = field(default_factory=dict)
    record: bool = False


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """A case, averaged over seeds; times in seconds, `worst` is the largest over all seeds.

    `mean`, `deviation` and `worst` are over the means of each second, as in the paper's Table 2;
    `windows_over` counts model-seconds whose mean is above the SLA.
    """

    late_share: float
    rejected_share: float
    core_seconds: float
    windows_over: float
    mean: float
    deviation: float
    worst: float
    results: tuple[SimulationResult, ...] = field(repr=False)

    @property
    def figures(self) -> tuple[float, float | None, float, float | None]:
        """Late share and core-seconds, each with half of its 95 % interval."""
        late = interval([r.late_share for r in self.results])
        return *late, *interval([r.core_seconds for r in self.results])


class Lab:
    """The resources of an experiment: seeds, traces, and processes to compute in."""

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        traces: Path | None = None,
        on_progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        self.seeds = tuple(seeds)
        self.traces = traces
        self._on_progress = on_progress

    def run(self, cases: Sequence[LabCase]) -> list[CaseSummary]:
        """Simulate every case under every seed; return one summary per case, in order."""
        return [_summary(results) for results in self.by_seed(_simulate, cases)]

    def bounds(
        self, workloads: Sequence[Workload], late_share: float, *, period: float = 1.0
    ) -> list[float | None]:
        """Return the clairvoyant core-seconds per workload; None where the bound is infeasible."""
        least = partial(_bound, late_share=late_share, period=period)
        return [_mean_or_none(found) for found in self.by_seed(least, workloads)]

    def by_seed(
        self,
        function: Callable[[Any], Any],
        cases: Sequence[Any],
        job: Callable[[Any, int], Any] = lambda case, seed: (case, seed),
    ) -> list[list[Any]]:
        """Apply a module's function to the job of every case and seed; return lists by case."""
        found = iter(self.map(function, [job(case, seed) for case in cases for seed in self.seeds]))
        return [[next(found) for _ in self.seeds] for _ in cases]

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        """Apply a module's function to every job, in processes; return the results in order."""
        found = []
        processes = min(len(jobs), len(os.sched_getaffinity(0)))
        with (
            ProcessPoolExecutor(processes, initializer=_begin_process) as pool,
            ended_on_error(pool),
        ):
            for result in pool.map(function, jobs):
                found.append(result)
                self._on_progress(len(found), len(jobs))
        return found


def _begin_process() -> None:
    """Leave signals and objects to the first process.

    A forked process must not collect what its parent made: finalisers such as gRPC's wait for
    threads that exist in the parent only.
    """
    gc.freeze()
    begin_in_pool()


def clairvoyant_loads(workload: Workload, seed: int) -> dict[str, ModelLoad]:
    """Return the inputs of the clairvoyant bound for one run."""
    arrivals = workload.arrivals(seed)
    return {
        model.name: ModelLoad(
            arrivals=list(takewhile(lambda time: time < workload.duration, arrivals[model.name])),
            cost=model.service.cost,
            gpu_time=model.service.gpu_time if workload.gpus else None,
            response_time=model.response_time,
            minimum=workload.minimum * workload.workers,
            maximum=workload.cores * workload.workers,
            replicas=workload.workers,
        )
        for model in workload.models
    }


def clairvoyant_bound(
    workload: Workload, seed: int, late_share: float, period: float = 1.0
) -> Bound:
    """Return the bound of one run; raise Infeasible if no policy could keep the late share."""
    return bound(
        clairvoyant_loads(workload, seed),
        gpus=workload.gpus * workload.workers,
        capacity=workload.cores * workload.workers,
        duration=workload.duration,
        late_share=late_share,
        period=period,
    )


def _simulate(job: tuple[LabCase, int]) -> SimulationResult:
    case, seed = job
    scenario = case.workload.scenario(case.system, seed, **case.changes)
    return Simulation(scenario, record=case.record).run()


def _bound(job: tuple[Workload, int], *, late_share: float, period: float) -> float | None:
    try:
        return clairvoyant_bound(*job, late_share, period).core_seconds
    except Infeasible:
        return None


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if len(known) == len(values) else None


def _summary(results: Sequence[SimulationResult]) -> CaseSummary:
    models = [m for r in results for m in r.models]
    windows = sum(m.windows for m in models)
    return CaseSummary(
        late_share=fmean(r.late_share for r in results),
        rejected_share=fmean(r.rejected_share for r in results),
        core_seconds=fmean(r.core_seconds for r in results),
        windows_over=fmean(r.windows_over for r in results),
        mean=sum(m.window_mean * m.windows for m in models) / max(1, windows),
        deviation=fmean(m.window_deviation for m in models),
        worst=max(m.window_worst for m in models),
        results=tuple(results),
    )

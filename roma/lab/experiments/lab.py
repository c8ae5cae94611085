"""Runs many simulations, on every core of this machine, and averages them over seeds."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from roma.lab.experiments.clairvoyant import Bound, Infeasible, ModelLoad, bound
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
    used_seconds: float
    windows_over: float
    mean: float
    deviation: float
    worst: float
    results: tuple[SimulationResult, ...] = field(repr=False)


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
        jobs = [(case, seed) for case in cases for seed in self.seeds]
        results = self.map(_simulate, jobs)
        n = len(self.seeds)
        return [_summary(results[i : i + n]) for i in range(0, len(results), n)]

    def bounds(
        self, workloads: Sequence[Workload], late_share: float, *, period: float = 1.0
    ) -> list[float | None]:
        """Return the clairvoyant core-seconds per workload; None where the bound is infeasible."""
        jobs = [
            (workload, seed, late_share, period) for workload in workloads for seed in self.seeds
        ]
        found = self.map(_bound, jobs)
        n = len(self.seeds)
        return [_mean_or_none(found[i : i + n]) for i in range(0, len(found), n)]

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
    loads = {}
    for model in workload.models:
        times = workload.arrivals(seed)[model.name]
        known = []
        for time in times:
            if time >= workload.duration:
                break
            known.append(time)
        loads[model.name] = ModelLoad(
            arrivals=known,
            cost=model.service.cost,
            gpu_time=model.service.gpu_time if workload.gpus else None,
            response_time=model.response_time,
            minimum=workload.minimum * workload.workers,
            maximum=workload.cores * workload.workers,
            replicas=workload.workers,
        )
    return loads


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


def _bound(job: tuple[Workload, int, float, float]) -> float | None:
    try:
        return clairvoyant_bound(*job).core_seconds
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
        used_seconds=fmean(r.used_seconds for r in results),
        windows_over=fmean(r.windows_over for r in results),
        mean=sum(m.window_mean * m.windows for m in models) / max(1, windows),
        deviation=fmean(m.window_deviation for m in models),
        worst=max(m.window_worst for m in models),
        results=tuple(results),
    )

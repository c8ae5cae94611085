"""`clairvoyant-bound`: the cost of the clairvoyant's own plan in the simulated plant.

The bound of `clairvoyant` is a lower one: its requests are divisible, except for the rule on
minima, and its GPUs preemptible. Here its allocation is played second by second in the simulated
plant, with whole requests and with the dispatcher and the burst of the defaults. Late requests must
then be avoided with more cores: the plans for 0, 1 and 2 % late are enlarged in steps, and the
cheapest that keeps the promise is reported. A policy that knows the future needs no less than the
bound, and no more than this or any law that keeps the promise.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from statistics import fmean

from roma.config.placement import executables
from roma.domain.model import Device
from roma.lab.experiments import systems, workloads
from roma.lab.experiments.base import Cell, Check, Column, Experiment, Output, Table
from roma.lab.experiments.clairvoyant import Infeasible
from roma.lab.experiments.intervals import interval, interval_note
from roma.lab.experiments.lab import Lab, LabCase, clairvoyant_bound
from roma.lab.experiments.pareto import LATE
from roma.lab.experiments.workloads import Workload
from roma.lab.sim.result import SimulationResult
from roma.lab.sim.simulation import Simulation

SHARES = (0.0, 0.01, LATE)
"""Late shares that plans are made for: a plan for fewer late requests may need less enlargement."""

FACTORS = (1.0, 1.15, 1.3, 1.5, 1.8)
TARGET = 1.25
"""Aim of the defaults, as a multiple of the played plan."""

RESERVES = (0.0, 0.1, 0.3)
"""Cores added in seconds in which the plan has more than the minimum."""


def split(plan: Mapping[str, float], workload: Workload) -> dict[tuple[str, int], float]:
    """Return the cores of each (model, worker) in one second.

    A model's cores stay together as long as a worker has room for them, the largest first: every
    replica that runs anything needs the cores of one request. Cores that fit no worker are not
    granted.
    """
    least = workload.minimum
    room = [workload.cores - least * len(plan)] * workload.workers
    shares = {}
    for model, cores in sorted(plan.items(), key=lambda entry: -entry[1]):
        left = max(0.0, cores - least * workload.workers)
        for worker in sorted(range(workload.workers), key=lambda worker: -room[worker]):
            given = min(left, room[worker])
            shares[model, worker] = least + given
            room[worker] -= given
            left -= given
    return shares


def enlarged(
    plan: Mapping[str, Sequence[float]], factor: float, reserve: float, least: float
) -> dict[str, list[float]]:
    """Return a plan whose cores above the minimum are multiplied, plus a reserve where any are."""
    return {
        model: [
            least + (u - least) * factor + (reserve if u > 1.01 * least else 0.0) for u in cores
        ]
        for model, cores in plan.items()
    }


def play(workload: Workload, plan: Mapping[str, Sequence[float]], seed: int) -> SimulationResult:
    """Simulate a workload under an allocation by model and second."""
    seconds = range(len(next(iter(plan.values()))))
    by_second = [split({m: cores[k] for m, cores in plan.items()}, workload) for k in seconds]
    scenario = workload.scenario(systems.SHIPPED_ENGINE, seed)
    names = [worker.name for worker in scenario.config.workers]
    script = {
        e.name: [shares[e.spec.models[0], names.index(e.spec.worker)] for shares in by_second]
        for e in executables(scenario.config)
        if e.spec.device is Device.CPU
    }
    return Simulation(replace(scenario, script=script)).run()


def play_bound(job: tuple[Workload, int]) -> tuple[float, SimulationResult] | None:
    """Return the bound and the cheapest play that keeps the promise, None if none does."""
    workload, seed = job
    least = workload.minimum * workload.workers
    plans = []
    for share in SHARES:
        # A larger share may have a plan where a smaller one has none.
        with suppress(Infeasible):
            plans.append(clairvoyant_bound(workload, seed, share))
    kept = []
    for plan, factor, reserve in product(plans, FACTORS, RESERVES):
        found = play(workload, enlarged(plan.cores, factor, reserve, least), seed)
        if found.late_share <= LATE:
            kept.append(found)
    cheapest = min(kept, key=lambda result: result.core_seconds, default=None)
    return None if cheapest is None else (plans[-1].core_seconds, cheapest)


def _run(lab: Lab) -> Output:
    tests = workloads.pareto(lab.traces)
    found = lab.by_seed(play_bound, tests)
    defaults = lab.run([LabCase(test, systems.SHIPPED) for test in tests])
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for test, runs, ours in zip(tests, found, defaults, strict=True):
        known = [run for run in runs if run is not None]
        if len(known) < len(runs):
            rows.append((test.name, None, None, None, None, None, *ours.figures[2:], None))
            continue
        bound = fmean(bound for bound, _ in known)
        played, half = interval([result.core_seconds for _, result in known])
        late = fmean(result.late_share for _, result in known)
        ratio = ours.core_seconds / played
        times = played / bound
        rows.append((test.name, bound, played, half, late, times, *ours.figures[2:], ratio))
        claim = f"{test.name}: {systems.SHIPPED.name}: {ratio:.2f} × the played plan (≤ {TARGET})"
        checks.append(Check(claim, ratio <= TARGET, is_aim=True))
    columns = (
        Column("workload"),
        Column("bound core-s", ".0f"),
        Column("played core-s", ".0f"),
        Column("±", ".0f"),
        Column("late", ".2%"),
        Column("times the bound", ".2f"),
        Column(f"{systems.SHIPPED.name}: core-s", ".0f"),
        Column("±", ".0f"),
        Column("times the play", ".2f"),
    )
    note = (
        "A dash: nobody, or no enlargement of the plan, keeps the promise. "
        f"{interval_note(len(lab.seeds))}"
    )
    title = f"The clairvoyant's plan, played until ≤ {LATE:.0%} are late"
    return Output((Table("clairvoyant-bound", title, columns, rows, note),), checks=tuple(checks))


CLAIRVOYANT_BOUND = Experiment(
    "clairvoyant-bound",
    "What the clairvoyant's own plan costs when it is really played",
    _run,
    seeds=5,
)

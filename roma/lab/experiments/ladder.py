"""`ladder`: core-seconds and late shares of the defaults, from tight promises to loose ones.

A rung is one model alone on a worker of 32 cores, with its cost per request, promise, rate and
arrival process. It is compared with the cheapest *constant* allocation that keeps the promise on
the very same requests, with the same burst, queue rule and policies; nobody could have known that
one beforehand. Refused and failed requests count as late. Beside the ladder there are loads whose
requests come several at a time, as from a client that sends what one page needs.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean
from typing import Any

from roma.config.models import DEFAULT_BUDGET
from roma.config.schema import Config
from roma.lab.experiments.base import Check, Column, Table
from roma.lab.experiments.lab import Lab
from roma.lab.experiments.workloads import one_worker
from roma.lab.sim.scenario import Scenario, from_config, seed_of
from roma.lab.sim.simulation import Simulation
from roma.workload.arrivals import Process

CORES = 32.0

MODELS = ((0.02, 1), (0.06, 2), (0.4, 4))
"""Core-seconds of a request, and the number of threads that it can use."""

SERVICES = (1.5, 2.0, 3.0, 5.0, 8.0, 12.5, 50.0)
"""Promises, as multiples of a request's time on its threads."""

RATES = (0.5, 2.0, 10.0, 50.0, 200.0)
"""Requests per second."""

TOO_MUCH = (0.4, 200.0)
"""Cost and rate of the one load left out: it needs 80 cores, of 32."""

PROCESSES = (Process.POISSON, Process.PACED, Process.MMPP)

TOGETHER = ((3, 5.0), (10, 20.0), (30, 50.0))
"""Requests that come at a time, and a promise that leaves one slot the time for them."""

TOGETHER_RATES = (25.0, 10.0, 4.0)
"""Requests per second of each of the models."""

LEAST_SECONDS, LEAST_REQUESTS = 600.0, 2500
"""Least length of each run, its start included."""

STEP = 1.05
"""Ratio between successive constant allocations."""

AROUND = 12
"""Steps, a factor of 1.8, within which the cheapest constant usually is from ours."""

LEAST_CORES = 0.01

SEED_OFFSET = 3000
"""Offset of the seeds: the law was chosen on small ones, and on those from 2000 on."""

RUN_LIMIT, RUNS_BEYOND = 0.03, 0.01
"""At most `RUNS_BEYOND` of the runs may have a late share above `RUN_LIMIT`."""

STEADY, WORST, BURSTY = 1.10, 1.25, 0.85
"""Aims for core-seconds relative to the constant's: steady on average, worst, MMPP on average."""

LOAD = (Column("model"), Column("promise"))
FOUND = (
    Column("late", ".2%"),
    Column("constant, cores", ".3f"),
    Column("its late", ".2%"),
    Column("core-s, ratio", ".2f"),
)


@dataclass(frozen=True, slots=True)
class Rung:
    """A model alone on a worker; times in seconds, `rate` in requests per second.

    `size` requests come at a time.
    """

    cost: float
    threads: int
    services: float
    rate: float
    process: Process
    size: int = 1

    @property
    def response_time(self) -> float:
        """The promise."""
        return self.services * self.cost / self.threads

    @property
    def duration(self) -> float:
        """Seconds of a run."""
        return max(LEAST_SECONDS, 1.1 * LEAST_REQUESTS / self.rate)

    @property
    def is_dense(self) -> bool:
        """True if the mean load is at least twice the need of one request in time."""
        return self.rate * self.cost >= 2 * self.cost / self.response_time

    def config(self, constant: float | None = None) -> Config:
        """Return the configuration: a model, a worker, and maybe a constant allocation in cores."""
        fixed: dict[str, Any] = {} if constant is None else {"control": {"law": "static"}}
        cpu: dict[str, Any] = {"threads": self.threads}
        if constant is not None:
            cpu |= {"min": constant, "max": constant, "initial": constant}
        load = {"profile": f"{self.rate / self.size:g}", "process": self.process}
        plant = {"cost": self.cost, "parallelism": self.threads, "load": load}
        models = {"m": {"sla": {"response_time": self.response_time}, "cpu": cpu}}
        file = one_worker(models, {"m": plant}, cores=CORES, duration=self.duration)
        return Config.model_validate(file | fixed)

    def scenario(self, seed: int, constant: float | None = None) -> Scenario:
        """Return the scenario of a run."""
        found = from_config(self.config(constant), seed=SEED_OFFSET + seed)
        times = {model: several(times, self.size) for model, times in found.arrivals.items()}
        return replace(found, arrivals=times)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one allocation, one per seed."""

    late: tuple[int, ...]
    requests: tuple[int, ...]
    core_seconds: float

    @property
    def share(self) -> float:
        """The late share, pooled over the seeds."""
        return sum(self.late) / max(1, sum(self.requests))


@dataclass(frozen=True, slots=True)
class Climb:
    """Results of a rung; `cores` and `constant` are None where no constant keeps the promise."""

    rung: Rung
    ours: Runs
    cores: float | None
    constant: Runs | None

    @property
    def ratio(self) -> float | None:
        """Core-seconds of ours relative to those of the cheapest constant."""
        if self.constant is None:
            return None
        return self.ours.core_seconds / self.constant.core_seconds


def draw(seed: int) -> list[Rung]:
    """Return a rung for each model, promise and process, at a rate drawn by the seed."""
    source = random.Random(seed_of(SEED_OFFSET + seed, 0))
    return [
        Rung(
            cost,
            threads,
            services,
            source.choice([rate for rate in RATES if (cost, rate) != TOO_MUCH]),
            process,
        )
        for (cost, threads), services, process in product(MODELS, SERVICES, PROCESSES)
    ]


def together() -> list[Rung]:
    """Return the loads whose requests come several at a time."""
    return [
        Rung(cost, threads, services, rate, Process.POISSON, size)
        for (cost, threads), rate in zip(MODELS, TOGETHER_RATES, strict=True)
        for size, services in TOGETHER
    ]


def several(times: Iterable[float], size: int) -> Iterator[float]:
    """Repeat each time `size` times."""
    return (time for time in times for _ in range(size))


def climb(job: tuple[Rung, tuple[int, ...]]) -> Climb:
    """Run a rung under every seed, and find the cheapest constant for the same requests."""
    rung, seeds = job
    ours = _runs(rung, seeds)
    # The k-th constant is LEAST_CORES·STEP^k: `kept` and those above keep the promise, `broken` and
    # those below do not. The search begins around the average of ours.
    broken, kept = -1, math.floor(math.log(CORES / LEAST_CORES, STEP)) + 1
    guess = round(math.log(ours.core_seconds / (rung.duration * len(seeds)) / LEAST_CORES, STEP))
    probes, best = [guess - AROUND, guess + AROUND], None
    while kept - broken > 1:
        k = probes.pop() if probes else (kept + broken) // 2
        if not broken < k < kept:
            continue
        found = _runs(rung, seeds, LEAST_CORES * STEP**k)
        if found.share > DEFAULT_BUDGET:
            broken = k
        else:
            kept, best = k, found
    return Climb(rung, ours, None if best is None else LEAST_CORES * STEP**kept, best)


def _runs(rung: Rung, seeds: Sequence[int], constant: float | None = None) -> Runs:
    """Simulate every seed; stop early for a constant that is clearly too small."""
    expected = rung.rate * rung.duration * len(seeds)
    late, requests, core_seconds = [], [], 0.0
    for seed in seeds:
        result = Simulation(rung.scenario(seed, constant)).run()
        (model,) = result.models
        late.append(model.violations)
        requests.append(model.arrivals)
        core_seconds += result.core_seconds
        if constant is not None and sum(late) > 1.5 * DEFAULT_BUDGET * expected:
            break
    return Runs(tuple(late), tuple(requests), core_seconds)


def tables(lab: Lab) -> tuple[tuple[Table, list[Check]], ...]:
    """Return the tables, each with its claims."""
    rungs, more = draw(lab.seeds[0]), together()
    # The longest first, so that no process is left with one of them at the end.
    ordered = sorted([*rungs, *more], key=lambda r: -r.rate * r.duration)
    jobs = [(rung, lab.seeds) for rung in ordered]
    found = dict(zip(ordered, lab.map(climb, jobs), strict=True))
    return (*report([found[rung] for rung in rungs]), report_together([found[r] for r in more]))


def report(climbs: Sequence[Climb]) -> tuple[tuple[Table, list[Check]], ...]:
    """Return the tables of the results, and their distance from the aims."""
    rows = [
        (*_load(c.rung), c.rung.rate, str(c.rung.process), c.ours.share, *_constant(c))
        for c in climbs
    ]
    ladder = Table(
        "ladder",
        "The ladder: late shares, and core-seconds beside the cheapest constant's",
        (*LOAD, Column("req/s", "g"), Column("process"), *FOUND),
        rows,
        "A dash: no constant keeps 2 %.",
    )
    kept = [c for c in climbs if c.constant is not None]
    groups = {
        "steady (Poisson, paced)": [c for c in kept if c.rung.process is not Process.MMPP],
        "MMPP, dense": [c for c in kept if c.rung.process is Process.MMPP and c.rung.is_dense],
        "MMPP, others": [c for c in kept if c.rung.process is Process.MMPP and not c.rung.is_dense],
    }
    ratios = {name: [c.ratio or 1.0 for c in group] for name, group in groups.items() if group}
    cost = Table(
        "ladder-cost",
        "Core-seconds beside the cheapest constant's, where one keeps the promise",
        (Column("loads"), Column("rungs"), Column("mean", ".2f"), Column("worst", ".2f")),
        [(name, len(r), geometric_mean(r), max(r)) for name, r in ratios.items()],
        "Geometric means. Dense: the mean load is at least twice what one request in time needs.",
    )
    return (ladder, _kept(kept)), (cost, _cheap(ratios))


def report_together(climbs: Sequence[Climb]) -> tuple[Table, list[Check]]:
    """Return the table of requests that come several at a time, and the claim on it."""
    rows = [(*_load(c.rung), c.rung.rate, c.rung.size, c.ours.share, *_constant(c)) for c in climbs]
    table = Table(
        "promise-together",
        "Requests that come several at a time",
        (*LOAD, Column("req/s", "g"), Column("at a time"), *FOUND),
        rows,
        "They come as Poisson's single requests do. Core-seconds beside the cheapest constant's.",
    )
    late = max(c.ours.share for c in climbs)
    ratio = max(c.ratio or 0.0 for c in climbs)
    claim = "requests that come several at a time"
    return table, [
        Check(
            f"{claim}: at worst {late:.2%} late (≤ {DEFAULT_BUDGET:.0%})", late <= DEFAULT_BUDGET
        ),
        Check(
            f"{claim}: core-seconds at worst {ratio:.2f} × the constant's (≤ {WORST:g})",
            ratio <= WORST,
            is_aim=True,
        ),
    ]


def _load(rung: Rung) -> tuple[str, str]:
    return f"{1000 * rung.cost:g} core-ms on {rung.threads}", f"{rung.services:g} ×"


def _constant(found: Climb) -> tuple[float | None, float | None, float | None]:
    share = None if found.constant is None else found.constant.share
    return found.cores, share, found.ratio


def _kept(kept: Sequence[Climb]) -> list[Check]:
    """Return the checks on late shares, on the rungs that a constant can keep."""
    late = [c for c in kept if c.ours.share > DEFAULT_BUDGET]
    worst = max((c.ours.share for c in kept), default=0.0)
    runs = [n / max(1, m) for c in kept for n, m in zip(c.ours.late, c.ours.requests, strict=True)]
    beyond = sum(share > RUN_LIMIT for share in runs) / max(1, len(runs))
    return [
        Check(
            f"{len(kept) - len(late)} of {len(kept)} rungs are at most {DEFAULT_BUDGET:.0%} late, "
            f"the worst {worst:.2%}",
            not late,
            is_aim=True,
        ),
        Check(
            f"{beyond:.1%} of the runs are more than {RUN_LIMIT:.0%} late (≤ {RUNS_BEYOND:.0%})",
            beyond <= RUNS_BEYOND,
            is_aim=True,
        ),
    ]


def _cheap(ratios: dict[str, list[float]]) -> list[Check]:
    """Return the checks on the core-seconds of each group against the aims."""
    checks = []
    for name, found in ratios.items():
        mean, worst = geometric_mean(found), max(found)
        if name == "MMPP, dense":
            claim = f"{name}: core-seconds {mean:.2f} × the constant's (≤ {BURSTY:g})"
            checks.append(Check(claim, mean <= BURSTY, is_aim=True))
            continue
        if name != "MMPP, others":
            claim = f"{name}: core-seconds {mean:.2f} × the constant's (≤ {STEADY:g})"
            checks.append(Check(claim, mean <= STEADY, is_aim=True))
        claim = f"{name}: at worst {worst:.2f} × (≤ {WORST:g})"
        checks.append(Check(claim, worst <= WORST, is_aim=True))
    return checks

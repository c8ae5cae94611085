"""Quota and burst in the kernel and in the simulator: one list of requests through both.

Processes under a cgroup quota compute the work of requests; the simulated plant gets the same
requests at the same times, at their cost by the kernel's accounting. Rounds alternate between the
cells, each with arrivals of its own. The constant quota for 2 % late is interpolated between
measured ones, with burst and without.
"""

import contextlib
import fcntl
import math
import os
import random
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from rich.console import Console

from bench.tables import new_table
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.lab.experiments.intervals import cores_at
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.world import World
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.cgroups import Group, find_hierarchy

ROUNDS, SECONDS = 5, 30
"""Rounds of a cell, and the length of each: 1,000 requests at the lowest rate. The kernel's own p99
of 1,000 near saturation varies by a sixth when it is measured again."""

PERIOD = 0.1
CORES = os.cpu_count() or 1
SLOTS = 4
"""Processes of an executable beside another one: the number of requests it computes at once. Alone
it has one on each core, pinned: the quota is compared, not the kernel's placement."""

SPREAD = 0.3
"""Standard deviation of the logarithm of a request's cost."""

FULL = 3 * PERIOD
"""Seconds of silence after which a bucket is full."""

PATIENCE = 30.0
"""Seconds after the last arrival that are simulated."""

P95, P99 = 0.10, 0.15
"""Largest deviation of the simulator's percentiles, as a share of the kernel's."""

LATE, SERVICES, SAVED = 0.02, 5, 0.10
"""Late share at which quotas are compared, promise in mean services, and the aim of burst."""


class Load(NamedTuple):
    """Requests of an executable: req/s, core-seconds each, and its quota in cores."""

    rate: float
    cost: float
    quota: float

    def __str__(self) -> str:
        return f"{self.rate:g}/s × {1000 * self.cost:g} ms"


class Cell(NamedTuple):
    """Executables side by side; `burst` as a share of their quotas."""

    loads: tuple[Load, ...]
    burst: float

    @property
    def cores(self) -> Sequence[int]:
        """Cores that processes are pinned to, none if they are not."""
        return sorted(os.sched_getaffinity(0)) if len(self.loads) == 1 else ()

    @property
    def slots(self) -> int:
        """Number of requests that each executable computes at once."""
        return len(self.cores) or SLOTS


class Round(NamedTuple):
    """Response times by executable in seconds, ascending, and core-seconds: granted, or used."""

    times: tuple[list[float], ...]
    core_seconds: float


QUOTAS: Mapping[tuple[float, float], Mapping[float, Sequence[float]]] = {
    (50, 0.010): {0.0: (0.70, 0.75, 0.80), 1.0: (0.55, 0.60, 0.65)},
    (100, 0.005): {0.0: (0.65, 0.70, 0.75), 1.0: (0.52, 0.55, 0.60)},
}
"""By rate and cost, and by burst: quotas around 2 % late."""

ALONE = tuple(
    Cell((Load(rate, cost, quota),), burst)
    for (rate, cost), bursts in QUOTAS.items()
    for burst, quotas in bursts.items()
    for quota in quotas
)
TOGETHER = tuple(Cell((Load(70, 0.010, 1.0), Load(35, 0.020, 1.0)), burst) for burst in (0.0, 1.0))
"""Cells on two cores, all of which are granted."""


def run(seconds: int = SECONDS) -> None:
    """Print both sides of every cell; exit 1 if they differ, or if burst saves too little."""
    cells = [*ALONE, *TOGETHER]
    rounds: dict[Cell, list[tuple[Round, Round]]] = {cell: [] for cell in cells}
    for seed in range(ROUNDS):
        for cell in cells:
            rounds[cell].append(_round(cell, seconds, seed))
    fits = _parity(rounds)
    saves = _savings(rounds)
    if not (fits and saves):
        sys.exit(1)


def _parity(rounds: Mapping[Cell, Sequence[tuple[Round, Round]]]) -> bool:
    table = new_table(
        f"response times in ms, kernel → simulator, medians of {ROUNDS} rounds",
        *("load", "quota", "burst", "p50", "p95", "ratio", "p99", "ratio"),
        caption=f"aim: p95 within {P95:.0%}, p99 within {P99:.0%} (median of the ratios)",
    )
    fits = True
    for cell, found in rounds.items():
        for i, load in enumerate(cell.loads):
            row = [str(load), f"{load.quota:g}", f"{cell.burst:g}"]
            for q, bound in ((0.50, None), (0.95, P95), (0.99, P99)):
                pairs = [(_quantile(k.times[i], q), _quantile(s.times[i], q)) for k, s in found]
                kernel, simulator = (1000 * median(side) for side in zip(*pairs, strict=True))
                row.append(f"{kernel:.1f} → {simulator:.1f}")
                if bound is not None:
                    ratio = median(s / k for k, s in pairs)
                    fits &= abs(ratio - 1) <= bound
                    row.append(f"{ratio:.3f}")
            table.add_row(*row)
    Console().print(table)
    return fits


def _savings(rounds: Mapping[Cell, Sequence[tuple[Round, Round]]]) -> bool:
    table = new_table(
        f"core-seconds per second for {LATE:.0%} late, promise {SERVICES} × service",
        *("load", "side", "without burst", "with burst", "saved"),
        words=2,
        caption=f"of constant quotas, interpolated; aim: burst saves ≥ {SAVED:.0%} in the kernel",
    )
    saves = True
    for key, bursts in QUOTAS.items():
        for side, name in enumerate(("kernel", "simulator")):
            needs = []
            for burst in bursts:
                cells = [Cell((Load(*key, quota),), burst) for quota in bursts[burst]]
                points = [_point([pair[side] for pair in rounds[cell]], key) for cell in cells]
                needs.append(cores_at(LATE, points))
            saved = 1 - needs[1] / needs[0]
            saves &= side == 1 or saved >= SAVED
            table.add_row(
                str(Load(*key, 0.0)), name, *(f"{cores:.3f}" for cores in needs), f"{saved:.1%}"
            )
    Console().print(table)
    return saves


def _point(rounds: Sequence[Round], key: tuple[float, float]) -> tuple[float, float]:
    """Return late share and core-seconds per second of a quota, means over the rounds."""
    rate, cost = key
    late = [sum(t > SERVICES * cost for t in r.times[0]) / len(r.times[0]) for r in rounds]
    cores = [r.core_seconds * rate / len(r.times[0]) for r in rounds]
    return fmean(late), fmean(cores)


def _round(cell: Cell, seconds: int, seed: int) -> tuple[Round, Round]:
    """Return the results of the same requests in the kernel and in the simulator."""
    plans = []
    for i, load in enumerate(cell.loads):
        own = 1000 * seed + i
        draw = random.Random(own)
        sends = poisson(Profile((RateStep(load.rate, seconds),)), seed=own)
        plans.append([(at, draw.gauss(0.0, 1.0)) for at in sends])
    kernel, profiles = _in_kernel(cell, plans)
    return kernel, _simulated(cell, plans, profiles)


Plan = Sequence[tuple[float, float]]
"""Send times in seconds, and the size of each request: a standard normal."""


def _size(normal: float) -> float:
    """Return a request's size as a multiple of the mean: lognormal."""
    return math.exp(SPREAD * normal - SPREAD**2 / 2)


JOB, END = struct.Struct("=Idd"), struct.Struct("=Idd")
"""Messages to and from a process: index of the request, time of its arrival, core-seconds; index,
time of its end, and the delay from arrival until a process that slept until then was awake (NaN:
none slept)."""

PIPE = 1 << 20
"""Bytes: all jobs of a round fit, so that no writer has to run beside the processes and wake
them."""


def _in_kernel(cell: Cell, plans: Sequence[Plan]) -> tuple[Round, list[ModelProfile]]:
    """Run the plans in the kernel; return also what its accounting says of each executable."""
    with contextlib.ExitStack() as stack:
        groups = [
            stack.enter_context(_limited(f"m{i}", load.quota, cell.burst))
            for i, load in enumerate(cell.loads)
        ]
        servers = [stack.enter_context(_Servers(group, cell.slots, cell.cores)) for group in groups]
        start = _boundary(groups[0], servers[0]) + FULL
        before = [g.read().usage for g in groups]
        for load, server, plan in zip(cell.loads, servers, plans, strict=True):
            for k, (at, normal) in enumerate(plan):
                server.send(k, start + at, load.cost * _size(normal))
        found = [server.ends(len(plan)) for server, plan in zip(servers, plans, strict=True)]
        seconds = time.monotonic() - start
        used = [g.read().usage - b for g, b in zip(groups, before, strict=True)]
    times = tuple(
        sorted(ends[k] - start - at for k, (at, _) in enumerate(plan))
        for (ends, _), plan in zip(found, plans, strict=True)
    )
    paid = sum(max(x.quota * seconds, u) for x, u in zip(cell.loads, used, strict=True))
    profiles = [
        _profile(u, x.cost * _sizes(plan), plan, waking)
        for u, x, plan, (_, waking) in zip(used, cell.loads, plans, found, strict=True)
    ]
    return Round(times, paid), profiles


def _profile(used: float, asked: float, plan: Plan, waking: float) -> ModelProfile:
    """Return the profile with which the simulator charges a plan the core-seconds `used`.

    A process uses more than a request asked for, to take it and to answer, but before its arrival
    or after its end; the simulator charges all of it in between. So that much is taken off `waking`
    and a request that meets no other takes as long in both.
    """
    noise = math.sqrt(math.expm1(SPREAD**2))
    outside = (used - asked) / len(plan)
    return ModelProfile(cost=used / _sizes(plan), noise=noise, overhead=max(0.0, waking - outside))


def _sizes(plan: Plan) -> float:
    return math.fsum(_size(normal) for _, normal in plan)


def _boundary(group: Group, servers: "_Servers") -> float:
    """Return the start of a period of the group's quota: the kernel has a separate clock for it.

    A request's position within a period largely determines its end.
    """
    servers.send(0, 0.0, 4 * PERIOD)
    periods = group.read().periods
    while group.read().periods == periods:
        pass
    found = time.monotonic()
    servers.ends(1)
    now = time.monotonic()
    return found + math.ceil((now - found) / PERIOD) * PERIOD


@contextlib.contextmanager
def _limited(name: str, quota: float, burst: float) -> Iterator[Group]:
    hierarchy = find_hierarchy()
    path = f"roma-bench-{os.getpid()}/{name}"
    hierarchy.prepare(path)
    group = hierarchy.group(path, PERIOD, burst)
    group.create()
    try:
        group.set_cores(quota)
        yield group
    finally:
        group.remove()


class _Servers:
    """Processes in one group that take jobs from one pipe, in order, and compute them when due."""

    def __init__(self, group: Group, slots: int, cores: Sequence[int]) -> None:
        """Create without starting; process i runs on core i of `cores`, on any without `cores`."""
        self._group = group
        self._slots = slots
        self._cores = cores

    def __enter__(self) -> "_Servers":
        jobs, self._jobs = os.pipe()
        fcntl.fcntl(jobs, fcntl.F_SETPIPE_SZ, PIPE)
        self._ends, ends = os.pipe()
        self._pids = []
        for i in range(self._slots):
            pid = os.fork()
            if pid == 0:
                os.close(self._jobs)
                if self._cores:
                    os.sched_setaffinity(0, {self._cores[i]})
                self._group.add(os.getpid())
                _serve(jobs, ends)
            self._pids.append(pid)
        os.close(jobs)
        os.close(ends)
        return self

    def send(self, number: int, due: float, work: float) -> None:
        os.write(self._jobs, JOB.pack(number, due, work))

    def ends(self, count: int) -> tuple[dict[int, float], float]:
        """Wait for all answers; return each request's end, and the time that waking takes."""
        found: dict[int, float] = {}
        woken = []
        while len(found) < count:
            for number, end, awake in END.iter_unpack(os.read(self._ends, END.size * 1000)):
                found[number] = end
                if not math.isnan(awake):
                    woken.append(awake)
        return found, fmean(woken or [0.0])

    def __exit__(self, *_: object) -> None:
        os.close(self._jobs)
        for pid in self._pids:
            os.waitpid(pid, 0)
        os.close(self._ends)


def _serve(jobs: int, ends: int) -> None:
    """Compute jobs until there are no more; one process reads a record as a whole."""
    try:
        while record := os.read(jobs, JOB.size):
            number, due, work = JOB.unpack(record)
            awake = math.nan
            if (pause := due - time.monotonic()) > 0:
                time.sleep(pause)
                awake = time.monotonic() - due
            done = time.thread_time() + work
            while time.thread_time() < done:
                pass
            os.write(ends, END.pack(number, time.monotonic(), awake))
    finally:
        os._exit(0)


def _simulated(cell: Cell, plans: Sequence[Plan], profiles: Sequence[ModelProfile]) -> Round:
    names = [f"m{i}" for i in range(len(plans))]
    config = Config.model_validate(
        {
            "models": {
                name: {
                    "path": "/",
                    "sla": {"response_time": 1},
                    "cpu": {"min": load.quota, "max": load.quota},
                }
                for name, load in zip(names, cell.loads, strict=True)
            },
            "workers": [{"name": "w", "cores": CORES}],
            "control": {"cfs_period": PERIOD},
        }
    )
    played = _Played(config, dict(zip(names, profiles, strict=True)), cell)
    for i, plan in enumerate(plans):
        for at, normal in plan:
            played.agenda.at(FULL + at, played.arrive, (i, FULL + at, normal))
    last = max(at for plan in plans for at, _ in plan)
    played.agenda.run(last + PATIENCE)
    times = tuple(sorted(found) for found in played.times)
    seconds = played.last - FULL
    paid = sum(
        max(load.quota * seconds, profile.cost * _sizes(plan))
        for load, profile, plan in zip(cell.loads, profiles, plans, strict=True)
    )
    return Round(times, paid)


class _Played:
    """The simulated plant, with a queue before each executable."""

    def __init__(self, config: Config, profiles: Mapping[str, ModelProfile], cell: Cell) -> None:
        self.agenda = Agenda()
        self.times: list[list[float]] = [[] for _ in profiles]
        self.last = 0.0
        self._names = list(profiles)
        self._world = World(config, profiles, self.agenda, self._ended, burst=cell.burst)
        self._running: list[tuple[int, float]] = []
        self._free = [cell.slots] * len(profiles)
        self._waiting: list[deque[tuple[float, float]]] = [deque() for _ in profiles]

    def arrive(self, what: tuple[int, float, float]) -> None:
        i, at, normal = what
        self._waiting[i].append((at, normal))
        self._start(i)

    def _start(self, i: int) -> None:
        if self._free[i] and self._waiting[i]:
            at, normal = self._waiting[i].popleft()
            self._free[i] -= 1
            self._running.append((i, at))
            name = self._names[i]
            self._world.start(len(self._running) - 1, f"{name}@w", name, [normal])

    def _ended(self, execution: int) -> None:
        i, at = self._running[execution]
        self.last = self.agenda.now
        self.times[i].append(self.last - at)
        self._free[i] += 1
        self._start(i)


def _quantile(ascending: Sequence[float], q: float) -> float:
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]

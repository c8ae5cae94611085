"""The fewest core-seconds that keep the promises, for a policy that knows the future.

A linear program over a fluid queue. It returns a lower bound for every policy that sets the cores
of each model once a period (a second by default), never above its capacity, and answers
at most `late_share` of all requests later than their SLA or not at all. Per model and slot boundary
t, in requests so far:

    C(t) + G(t) + L(t) ≤ A(t)           nothing is served before it arrives
    C(t) + G(t) + L(t) ≥ A(t - D)       what arrived D ago is served on CPU or GPU, or given up
    cost·ΔC ≤ slot·u(k)                 the cores of period k carry its slots
    Σ gpu_time·ΔG ≤ gpus·slot           the models share the GPUs
    ΣL ≤ ⌊late_share·N⌋                 over the whole run and all N requests
    cost·ΣΔC(k) ≤ p·(κ·z(k) + μ·Σz(i))  cores at the minimum serve no request (below)
    minimum ≤ u(k) ≤ maximum, Σu(k) ≤ capacity;  minimise core-seconds

Every simplification lets it do with less, never with more, than a real policy:

- Requests are divisible, between devices and in time; a request can use any number of cores, and
  a GPU is preemptible and shareable. Overheads that no core shortens are left out.
- All requests of a model have one relative deadline, so serving in the order of arrival is
  serving by deadline: cumulative counts lose nothing. What is given up is known on arrival and
  costs nothing.
- Within a slot, what arrives before its end can use all of it, and what is due before its end has
  until then: with a slot of 0.1 s a deadline is stretched by less than 0.2 s in the worst case and
  0.1 s on average. A shorter slot gives a higher (better) bound in more time.
- What is due after `duration` need not be served, although it counts as a request.

**Cores at the minimum.** Divisible requests could live on the minima, a tenth of each per second; a
real request is computed whole by one replica, within its SLA. Let p be the period, f a replica's
share of the minimum, u(k) its cores in period k, z = u - f ≥ 0, and w(k) the cores that it spends
in that period, on average, on requests that it answers in time. Such a request works in at most n =
⌈D/slot⌉ + 1 slots in a row, so in one of the periods that they touch the replica has at least v =
cost/(n·slot) cores. Where the minimum alone is enough, v ≤ f, nothing follows. Otherwise, with g =
min(1, (n - 1)·slot/p), κ = v/(v - f), μ = g·f/(v - f), and i over the periods that n slots around
one of period k can touch:

- u(k) ≥ v: w(k) ≤ u(k) = z(k) + f ≤ κ·z(k), because z(k) ≥ v - f.
- u(k) < v: whatever worked in k reaches a period with z(i) ≥ v - f, before k or after it; on that
  side of k it has at most n - 1 slots. With s = 1 or 2 such sides, w(k) ≤ min(1, s·g)·u(k) ≤ z(k) +
  s·g·f, and μ·Σz(i) ≥ s·g·f.

So w(k) ≤ κ·z(k) + μ·Σz(i) in both cases, and summed over the replicas it is a row of the program.

It holds under these conditions: cores change at whole periods only; a quota carries slot·u within
a slot and no more (quota periods divide the slot and start with it, no burst; the kernel refills a
quota that is set in mid-period, which a late actuation gains from); a request stays with the device
that began it; `cost` and `gpu_time` are those of every request. If they vary, they must be means
over the requests of the run, and a policy that gives up the most expensive ones, or computes the
cheapest where others do not fit, could do with less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from roma.domain.errors import RomaError

_EDGE = 1e-9
"""Seconds. Times this near a slot boundary lie on it: 3·0.1 is not 0.3."""


class Infeasible(RomaError):
    """No policy could have kept the promises; `late_share` is the least that was possible."""

    def __init__(self, late_share: float) -> None:
        super().__init__(
            f"no allocation within capacity keeps these promises: at least {late_share:.2%} of "
            "the requests would be late"
        )
        self.late_share = late_share


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The requests of one model and what they need; seconds, cores, core-seconds per request.

    `arrivals` in any order, within the run. `gpu_time` is None if no GPU serves the model.
    `minimum` and `maximum` bound the cores of all its `replicas` together, whose minima are equal.
    """

    arrivals: Sequence[float]
    cost: float
    gpu_time: float | None
    response_time: float
    minimum: float
    maximum: float
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Bound:
    """The least `core_seconds`, one allocation per period that needs no more, and its late share.

    `cores` is *a* cheapest allocation, mostly one of many; `late_share` is what it gives up.
    """

    core_seconds: float
    cores: Mapping[str, list[float]]
    late_share: float


def bound(
    models: Mapping[str, ModelLoad],
    *,
    gpus: int,
    capacity: float,
    duration: float,
    late_share: float = 0.02,
    period: float = 1.0,
    slot: float = 0.1,
) -> Bound:
    """Return the lower bound for a run of `duration` seconds; `slot` must divide the period.

    Raises Infeasible if the load cannot be served, and ValueError for arguments that make no
    sense, naming them.
    """
    _check(models, capacity, duration, period, slot)
    program = _PlanProgram(models, gpus, capacity, duration, period=period, slot=slot)
    # A policy's number of late requests is whole.
    allowed = math.floor(late_share * program.requests + _EDGE)
    solution = program.solve(program.core_seconds, allowed)
    if solution is None:
        least = program.solve(program.given_up, program.requests)
        assert least is not None  # giving everything up is feasible
        raise Infeasible(float(program.given_up @ least) / program.requests)
    return Bound(
        core_seconds=float(program.core_seconds @ solution),
        cores={name: program.cores(solution, name) for name in models},
        late_share=float(program.given_up @ solution) / max(1, program.requests),
    )


def _check(
    models: Mapping[str, ModelLoad], capacity: float, duration: float, period: float, slot: float
) -> None:
    if not duration > 0:
        raise ValueError(f"duration = {duration}: must be > 0")
    if not period > 0:
        raise ValueError(f"period = {period}: must be > 0")
    if not (slot > 0 and math.isclose(round(period / slot) * slot, period)):
        raise ValueError(f"slot = {slot}: must divide the period ({period:g} s)")
    for name, m in models.items():
        if not (m.cost > 0 and m.response_time > 0 and (m.gpu_time is None or m.gpu_time > 0)):
            raise ValueError(f"{name}: cost, gpu_time and response_time must be > 0")
        if m.replicas < 1:
            raise ValueError(f"{name}: replicas = {m.replicas}: must be ≥ 1")
        if not 0 <= m.minimum <= m.maximum:
            raise ValueError(f"{name}: minimum = {m.minimum}: must be in [0, {m.maximum}]")
        if any(not 0 <= a < duration for a in m.arrivals):
            raise ValueError(f"{name}: arrivals must be in [0, {duration:g})")
    least = sum(m.minimum for m in models.values())
    if least > capacity:
        raise ValueError(f"capacity = {capacity}: must be ≥ the sum of the minima ({least:g})")


class _PlanProgram:
    """Variables of model m: u per period; S = C + G + L, ΔC, ΔG and ΔL per slot."""

    def __init__(
        self,
        models: Mapping[str, ModelLoad],
        gpus: int,
        capacity: float,
        duration: float,
        *,
        period: float,
        slot: float,
    ) -> None:
        self.requests = sum(len(m.arrivals) for m in models.values())
        per_period = round(period / slot)
        slots = math.ceil(duration / slot - _EDGE)
        ends = np.minimum(np.arange(1, slots + 1) * slot, duration)
        lengths = np.diff(ends, prepend=0.0)
        place = np.arange(slots) // per_period
        self._periods = int(place[-1]) + 1
        width = self._periods + 4 * slots
        self._offset = {name: i * width for i, name in enumerate(models)}
        size = width * len(models)
        self.core_seconds = np.zeros(size)
        self.given_up = np.zeros(size)
        self._lower = np.zeros(size)
        self._upper = np.full(size, np.inf)
        balance, limits = _Rows(), _Rows()
        j, k = np.arange(slots), np.arange(self._periods)
        gpu_rows = limits.add(slots, gpus * lengths)
        capacity_rows = limits.add(self._periods, np.full(self._periods, capacity))
        for name, m in models.items():
            u = self._offset[name] + k
            total = self._offset[name] + self._periods + j
            on_cpu, on_gpu, given_up = total + slots, total + 2 * slots, total + 3 * slots
            self.core_seconds[u] = np.bincount(place, weights=lengths)
            self.given_up[given_up] = 1
            self._lower[u], self._upper[u] = m.minimum, m.maximum
            self._lower[total], self._upper[total] = _arrived(m, ends)
            if m.gpu_time is None or gpus == 0:
                self._upper[on_gpu] = 0.0
            else:
                limits.put(gpu_rows + j, on_gpu, m.gpu_time)
            limits.put(capacity_rows + k, u, 1.0)
            rate = limits.add(slots, np.zeros(slots)) + j
            limits.put(rate, on_cpu, m.cost)
            limits.put(rate, u[place], -lengths)
            _whole_requests(limits, m, u, on_cpu, period=period, slot=slot)
            step = balance.add(slots, np.zeros(slots)) + j
            balance.put(step, total, 1.0)
            balance.put(step[1:], total[:-1], -1.0)
            for served in (on_cpu, on_gpu, given_up):
                balance.put(step, served, -1.0)
        self._late_row = limits.add(1, np.zeros(1))
        late = np.flatnonzero(self.given_up)
        limits.put(np.full(len(late), self._late_row), late, 1.0)
        self._equal, self._equals = balance.matrix(size)
        self._below, self._limits = limits.matrix(size)

    def solve(self, objective: NDArray[np.float64], late: float) -> NDArray[np.float64] | None:
        """Return the variables that minimise `objective`, None if nothing is feasible."""
        limits = self._limits.copy()
        limits[self._late_row] = late
        result = linprog(
            objective,
            A_ub=self._below,
            b_ub=limits,
            A_eq=self._equal,
            b_eq=self._equals,
            bounds=np.column_stack((self._lower, self._upper)),
            method="highs-ds",  # the interior point method stalls on some of these
        )
        if result.status == 2:
            return None
        if not result.success:
            raise RuntimeError(f"linprog: {result.message}")
        solution: NDArray[np.float64] = result.x
        return solution

    def cores(self, solution: NDArray[np.float64], name: str) -> list[float]:
        """Return a model's cores per period."""
        first = self._offset[name]
        return [float(u) for u in solution[first : first + self._periods]]


class _Rows:
    """A sparse matrix and its right-hand side, built block by block."""

    def __init__(self) -> None:
        self._count = 0
        self._sides: list[NDArray[np.float64]] = []
        self._entries: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []

    def add(self, count: int, side: NDArray[np.float64]) -> int:
        """Add rows; return the index of the first."""
        first = self._count
        self._count += count
        self._sides.append(side)
        return first

    def put(
        self, rows: NDArray[Any], columns: NDArray[Any], values: float | NDArray[np.float64]
    ) -> None:
        """Set one entry per row."""
        self._entries.append((rows, columns, np.broadcast_to(values, rows.shape)))

    def matrix(self, columns: int) -> tuple[csr_array, NDArray[np.float64]]:
        """Return the matrix with `columns` columns, and the right-hand side."""
        rows, cols, values = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        matrix = csr_array((values, (rows, cols)), shape=(self._count, columns))
        return matrix, np.concatenate(self._sides)


def _whole_requests(
    limits: _Rows,
    m: ModelLoad,
    u: NDArray[np.int_],
    on_cpu: NDArray[np.int_],
    *,
    period: float,
    slot: float,
) -> None:
    """Add w(k) ≤ κ·z(k) + μ·Σz(i) for every period; the module docstring proves it."""
    touched = math.ceil(m.response_time / slot - _EDGE) + 1
    v, f = m.cost / (touched * slot), m.minimum / m.replicas
    if v - f <= _EDGE * v:
        return  # nearly equal, the row would say nothing with coefficients too large to solve
    kappa = v / (v - f)
    mu = min(1.0, (touched - 1) * slot / period) * f / (v - f)
    reach = math.ceil((touched - 1) * slot / period - _EDGE)
    k, place = np.arange(len(u)), np.arange(len(on_cpu)) // round(period / slot)
    around = np.minimum(k, reach) + np.minimum(k[::-1], reach)
    rows = limits.add(len(u), -(kappa + mu * around) * m.minimum)
    limits.put(rows + place, on_cpu, m.cost / period)
    limits.put(rows + k, u, -kappa)
    for away in range(1, reach + 1):
        limits.put(rows + k[away:], u[:-away], -mu)
        limits.put(rows + k[:-away], u[away:], -mu)


def _arrived(
    m: ModelLoad, ends: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return per slot how many must be done by its end, and how many can be."""
    arrivals = np.sort(np.asarray(m.arrivals, dtype=float))
    due = np.searchsorted(arrivals, ends - m.response_time + _EDGE, side="right")
    can = np.searchsorted(arrivals, ends - _EDGE, side="left")
    return due.astype(float), np.maximum(due, can).astype(float)

"""Upper bounds on quality, for known future queries and batches that take their mean time.

`in_order`   one device: the best schedule that serves queries in the order of their arrival, each
             in a batch of one of `COUNTS` or left out, by dynamic programming over (next query,
             time when the device is free). Times are rounded down to a grid; so no schedule in
             that order does better.
`priced`     any devices, in any order: every query gets a price, and each device independently
             serves the queries that pay, each at the best times for it. The prices plus the
             devices' gains beyond them are a bound, whatever the prices are (weak duality): a
             schedule that serves a query at most once gains no more from it than its price and
             the excess. Good prices are those of a linear program over slots of time in which
             queries and batches may be divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from roma.lab.experiments.qos.setting import HARD, SIZES, SOFT, VARIANTS, Queries, offer

COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Queries per batch that are tried; trying all up to 64 changes the bound by less than 0.0001."""

GRID: Final = 0.02
"""Seconds; with 0.01 the bound is lower by 0.0001."""

HORIZON: Final = 2.4
"""Seconds after a query's arrival that are considered: after its hard deadline it is worthless."""

SLOT: Final = 0.1
"""Seconds of a slot of the linear program. Half of it gives no better prices: a slot then has few
queries, and their prices vary from slot to slot."""


def in_order(queries: Queries, kind: str) -> float:
    """Return the greatest mean quality of a device that serves in the order of arrival."""
    slots = np.floor(queries.arrived / GRID).astype(int)
    soft = queries.sent + SOFT
    batches = _batches(kind)
    states, ends = round(HORIZON / GRID), round((HORIZON + 2.0) / GRID)
    most = max(COUNTS)
    # Row i % (most + 1): the best of queries i, i + 1, … if a device is free k slots after i came.
    best = np.zeros((most + 1, ends + states))
    times = np.arange(ends) * GRID
    count = len(queries)
    for i in range(count - 1, -1, -1):
        here = min(most, count - i)
        late = slots[i] * GRID + times[None, :] - soft[i : i + here, None]
        worth = np.cumsum(np.clip(1 - late / (HARD - SOFT), 0, 1), axis=0)
        if i + 1 < count:  # leave it out
            later = np.arange(states) - (slots[i + 1] - slots[i])
            row = best[(i + 1) % (most + 1)][np.maximum(later, 0)]
        else:
            row = np.zeros(states)
        for size, accuracy, steps in batches:
            if size > here:
                break
            wait = slots[i + size - 1] - slots[i]
            first, last = wait + steps, min(states + steps, ends)
            if wait >= states or first >= last:
                continue
            found = accuracy * worth[size - 1, first:last]
            if i + size < count:
                since = slots[i + size] - slots[i]
                places = np.maximum(np.arange(first, last) - since, 0)
                found = found + best[(i + size) % (most + 1)][places]
            np.maximum(row[wait : wait + last - first], found, out=row[wait : wait + last - first])
            np.maximum(row[:wait], found[0], out=row[:wait])  # it waits for the batch to be there
        best[i % (most + 1), :states] = row
        best[i % (most + 1), states:] = row[-1]
    return float(best[0, 0]) / count


def _batches(kind: str) -> list[tuple[int, float, int]]:
    """Return count, accuracy and slots of every batch."""
    found = []
    for count in COUNTS:
        for variant in VARIANTS:
            known = offer(kind)[variant.name].executions
            fitting = [size for size in SIZES if size >= count and size in known]
            if fitting:
                found.append((count, variant.accuracy, int(known[fitting[0]] / GRID)))
    return found


@dataclass(slots=True)
class _ColumnProgram:
    """A linear program, built column by column."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def column(self, cost: float, entries: Sequence[tuple[int, float]]) -> None:
        """Add a variable."""
        place = len(self.costs)
        self.costs.append(cost)
        for row, value in entries:
            self.rows.append(row)
            self.columns.append(place)
            self.values.append(value)


def priced(queries: Queries, kinds: Sequence[str]) -> float:
    """Return a bound on the mean quality of devices of several kinds."""
    prices = _prices(queries, kinds)
    total = float(prices.sum())
    for kind in set(kinds):
        total += list(kinds).count(kind) * _alone(queries, prices, kind)
    return total / len(queries)


def _alone(queries: Queries, prices: NDArray[np.float64], kind: str) -> float:
    """Return the most that a device gains from queries beyond their prices, in any batches.

    By dynamic programming over the time when it is free. Times are rounded down to the grid.
    """
    slots, soft = np.floor(queries.arrived / GRID).astype(int), queries.sent + SOFT
    batches = [
        (variant.accuracy, size, max(1, int(seconds / GRID)))
        for variant in VARIANTS
        for size, seconds in offer(kind)[variant.name].executions.items()
    ]
    accuracies, sizes, steps = (np.array(column)[:, None] for column in zip(*batches, strict=True))
    ended = int(slots[-1]) + round(HARD / GRID) + 1
    best = np.zeros(ended + int(steps.max()) + 1)
    for slot in range(ended - 1, int(slots[0]) - 1, -1):
        # Earlier queries were sent before, and are worthless.
        first = np.searchsorted(queries.arrived, slot * GRID - HARD)
        last = np.searchsorted(slots, slot, "right")
        best[slot] = best[slot + 1]
        if first == last:
            continue
        late = (slot + steps) * GRID - soft[None, first:last]
        beyond = accuracies * np.clip(1 - late / (HARD - SOFT), 0, 1) - prices[first:last]
        beyond = -np.sort(-np.maximum(beyond, 0), axis=1)[:, : int(sizes.max())]
        places = np.minimum(sizes, beyond.shape[1]) - 1
        made = np.take_along_axis(beyond.cumsum(axis=1), places, axis=1)
        best[slot] = max(best[slot], float((made + best[slot + steps]).max()))
    return float(best[slots[0]])


def _prices(queries: Queries, kinds: Sequence[str]) -> NDArray[np.float64]:
    """Return the value of each query to devices of several kinds that serve all of them."""
    begin = float(queries.arrived.min())
    total = int((queries.arrived.max() - begin + HARD) / SLOT) + 2
    came = np.rint((queries.arrived - begin) / SLOT).astype(int)
    groups = np.unique(came)
    sent = np.array([queries.sent[came == g].mean() for g in groups])
    names = sorted(set(kinds))
    batches = [
        (place, variant.accuracy, size, seconds)
        for place, kind in enumerate(names)
        for variant in VARIANTS
        for size, seconds in offer(kind)[variant.name].executions.items()
    ]
    # Rows: a group's queries; what a kind of batch that begins in a slot serves; devices in a slot.
    served, busy = len(groups), len(groups) + len(batches) * total
    bounds = np.zeros(busy + len(names) * total)
    bounds[: len(groups)] = [(came == g).sum() for g in groups]
    for place, name in enumerate(names):
        bounds[busy + place * total : busy + (place + 1) * total] = list(kinds).count(name)
    program = _ColumnProgram()
    for number, (place, accuracy, size, seconds) in enumerate(batches):
        steps = max(1, round(seconds / SLOT))
        for slot in range(total - steps):
            # A query takes its part of the batch's time, evenly over the slots.
            part = seconds / size / (steps * SLOT)
            taken = [(busy + place * total + slot + k, part) for k in range(steps)]
            program.column(0.0, [(served + number * total + slot, -1.0), *taken])
            late = slot * SLOT + seconds - (sent - begin + SOFT)
            worths = accuracy * np.minimum(1.0, 1 - late / (HARD - SOFT))
            for group in np.flatnonzero((groups <= slot) & (worths > 0)).tolist():
                program.column(
                    -float(worths[group]), [(group, 1.0), (served + number * total + slot, 1.0)]
                )
    matrix = sparse.csr_matrix(
        (program.values, (program.rows, program.columns)), (len(bounds), len(program.costs))
    )
    found = linprog(program.costs, A_ub=matrix, b_ub=bounds, bounds=(0, None), method="highs-ipm")
    if found.status != 0:
        raise RuntimeError(f"the prices' linear program: {found.message}")
    prices = np.maximum(0.0, -found.ineqlin.marginals[: len(groups)])
    order = sent.argsort()
    known: NDArray[np.float64] = np.interp(queries.sent, sent[order], prices[order])
    return known

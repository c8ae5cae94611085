"""Records as columns of numbers: two hours of fifty models fit into some ten megabytes.

A sample covers the time from its `start` to its `end`; what no sample covers is a gap, and stays
one: nothing is filled in.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MISSED = 2.5
"""Periods without a record that make a gap. A single tick that came late is none."""

GAP = 1.5
"""Seconds between two looks at a model which neither covers that make a gap."""


class ColumnBuilder:
    """Rows of numbers under construction."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns = {name: array("d") for name in names}

    def add(self, row: Mapping[str, float | None]) -> None:
        """Append one row; None becomes NaN."""
        for name, column in self._columns.items():
            value = row[name]
            column.append(np.nan if value is None else value)

    def sorted(self, by: str) -> dict[str, Numbers]:
        """Return the columns in the order of one of them."""
        found = {name: np.array(column) for name, column in self._columns.items()}
        order = np.argsort(found[by], kind="stable")
        return {name: column[order] for name, column in found.items()}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


def until_next(at: Numbers) -> Numbers:
    """Return when each of these decisions ends: at the next one, or a period later at a gap."""
    if not len(at):
        return at
    steps = np.diff(at)
    period = typical(at)
    held = np.where(steps > MISSED * period, period, steps)
    return np.asarray(at + np.append(held, period))


def typical(at: Numbers) -> float:
    """Return the usual time between two records, in seconds."""
    return float(np.median(np.diff(at))) if len(at) > 1 else 1.0


def gaps(start: Numbers, end: Numbers, least: float) -> list[Span]:
    """Return what lies uncovered, for `least` seconds or more, between the first and the last."""
    open_ = start[1:] - end[:-1] > least
    return [
        Span(float(a), float(b)) for a, b in zip(end[:-1][open_], start[1:][open_], strict=True)
    ]


class Grid:
    """Equal buckets over a run: as many as a chart has room for, none shorter than a second."""

    def __init__(self, whole: Span, points: int) -> None:
        self.step = max(1.0, float(np.ceil(whole.seconds / points)))
        count = max(1, int(np.ceil(whole.seconds / self.step)))
        self.edges = whole.start + self.step * np.arange(count + 1)

    def worst(self, start: Numbers, end: Numbers, values: Numbers) -> Numbers:
        """Return the largest value that covers any of each bucket, NaN where there is none."""
        found = np.full(len(self.edges) - 1, np.nan)
        # A sample that only touches a bucket, by a rounding or by a tick's jitter, is not in it.
        spare = 0.1 * min(self.step, typical(start))
        first = np.searchsorted(end, self.edges[:-1] + spare, side="right")
        last = np.searchsorted(start, self.edges[1:] - spare, side="left")
        for i, (a, b) in enumerate(zip(first, last, strict=True)):
            inside = values[a:b]
            known = inside[~np.isnan(inside)]
            if len(known):
                found[i] = known.max()
        return found

    def rate(self, start: Numbers, end: Numbers, counts: Numbers) -> Numbers:
        """Return counts per covered second of each bucket, NaN where nothing covers it."""
        if not len(start):
            return np.full(len(self.edges) - 1, np.nan)
        times = np.column_stack((start, end)).ravel()
        times = np.maximum.accumulate(times)
        covered = np.diff(np.interp(self.edges, times, _running(np.diff(times)[::2])))
        counted = np.diff(np.interp(self.edges, times, _running(counts)))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(covered > self.step / 4, counted / covered, np.nan))


def _running(values: Numbers) -> Numbers:
    """Return running sums at the start and at the end of each sample."""
    after = np.cumsum(values)
    return np.column_stack((after - values, after)).ravel()

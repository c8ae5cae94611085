"""Records as columns of numbers: two hours of fifty models fit into about ten megabytes.

A sample covers the time from its `start` to its `end`. Time that no sample covers is a gap, which
is not filled in.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

MISSED = 2.5
"""Number of periods without a record that makes a gap; a single late tick does not."""

GAP = 1.5
"""Uncovered seconds between two samples of a model that make a gap."""


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
    """A time span, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end - self.start


def until_next(at: Numbers, period: float) -> Numbers:
    """Return the end of each decision: the next decision, or one period later at a gap."""
    if not len(at):
        return at
    return np.asarray(at + np.append(without_gaps(np.diff(at), period), period))


def without_gaps(steps: Numbers, period: float) -> Numbers:
    """Return these times between two decisions, one period in place of each that is a gap."""
    return np.where(steps > MISSED * period, period, steps)


def typical(at: Numbers) -> float:
    """Return the usual time between two records, in seconds."""
    return float(np.median(np.diff(at))) if len(at) > 1 else 1.0


def gaps(start: Numbers, end: Numbers, least: float) -> list[Span]:
    """Return the uncovered spans of at least `least` seconds between first and last sample."""
    open_ = start[1:] - end[:-1] > least
    return [
        Span(float(a), float(b)) for a, b in zip(end[:-1][open_], start[1:][open_], strict=True)
    ]


class Grid:
    """Equal time buckets over a run: as many as fit a chart, none shorter than a second."""

    def __init__(self, whole: Span, points: int) -> None:
        self.step = max(1.0, float(np.ceil(whole.seconds / points)))
        count = max(1, int(np.ceil(whole.seconds / self.step)))
        self.edges = whole.start + self.step * np.arange(count + 1)

    def worst(self, start: Numbers, end: Numbers, values: Numbers) -> Numbers:
        """Return the largest value of the samples that overlap each bucket, NaN without samples."""
        found = np.full(len(self.edges) - 1, np.nan)
        # A sample that only touches a bucket, through rounding or a tick's jitter, is not in it.
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
        """Return counts per covered second of each bucket, NaN for uncovered buckets."""
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

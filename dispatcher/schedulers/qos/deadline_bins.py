"""Waiting requests ordered by deadline, approximately, at O(1) each (Fang et al., Fig. 3).

Time is divided into bins of equal width. A request is in the bin of its soft deadline. Bins are
emptied in order, and each bin in the order of arrival. A bin exists while it contains something;
only creating and removing a bin searches the other bins.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """A waiting request: its number, and its deadlines on the core's clock."""

    request: int
    soft: float
    hard: float


class DeadlineBins:
    """Bins of `width` seconds: an order that is correct up to that width."""

    __slots__ = ("_bins", "_order", "width")

    def __init__(self, width: float) -> None:
        self.width = width
        self._bins: dict[int, dict[int, Entry]] = {}
        self._order: list[int] = []
        """The bins' numbers, the smallest first."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in order; nothing may be added or removed meanwhile."""
        for number in self._order:
            yield from self._bins[number].values()

    def add(self, entry: Entry) -> None:
        """Enter a request."""
        number = int(entry.soft // self.width)
        found = self._bins.get(number)
        if found is None:
            found = self._bins[number] = {}
            insort(self._order, number)
        found[entry.request] = entry

    def remove(self, entry: Entry) -> None:
        """Remove a request."""
        number = int(entry.soft // self.width)
        found = self._bins[number]
        del found[entry.request]
        if not found:
            del self._bins[number]
            del self._order[bisect_left(self._order, number)]

    def discard(self, entry: Entry) -> bool:
        """Remove a request if it is here; return whether it was."""
        found = self._bins.get(int(entry.soft // self.width))
        if found is None or entry.request not in found:
            return False
        self.remove(entry)
        return True

    def head(self) -> Entry | None:
        """Return the first entry, or None."""
        return next(iter(self), None)

    def sizes(self, now: float, before: int, after: int) -> list[int]:
        """Return the sizes of `before` bins before that of `now`, and of `after` from it on."""
        current, bins = int(now // self.width), self._bins
        return [len(bins.get(i, ())) for i in range(current - before, current + after)]

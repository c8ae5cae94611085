"""Waiting requests ordered by deadline, approximately, at O(1) each (Fang et al., Fig. 3).

Time is cut into bins of one width. A request is in the bin of its soft deadline, and bins are
emptied in their order; within one, in the order of arrival. A bin exists while something is in it;
only making and dropping one looks for its place among the others.
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
    """Bins of `width` seconds: an order that is right up to that width."""

    __slots__ = ("_bins", "_order", "_size", "width")

    def __init__(self, width: float) -> None:
        self.width = width
        self._bins: dict[int, dict[int, Entry]] = {}
        self._order: list[int] = []
        """The bins' numbers, the smallest first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """Go through the entries in their order; nothing may be added or taken out meanwhile."""
        for number in self._order:
            yield from self._bins[number].values()

    def add(self, entry: Entry) -> None:
        """Enter a request."""
        number = int(entry.soft // self.width)
        found = self._bins.get(number)
        if found is None:
            found = self._bins[number] = {}
            insort(self._order, number)
        self._size += entry.request not in found
        found[entry.request] = entry

    def remove(self, entry: Entry) -> None:
        """Take a request out."""
        number = int(entry.soft // self.width)
        found = self._bins[number]
        del found[entry.request]
        self._size -= 1
        if not found:
            del self._bins[number]
            del self._order[bisect_left(self._order, number)]

    def discard(self, entry: Entry) -> bool:
        """Take a request out if it is here; return whether it was."""
        found = self._bins.get(int(entry.soft // self.width))
        if found is None or entry.request not in found:
            return False
        self.remove(entry)
        return True

    def head(self) -> Entry | None:
        """Return the first entry, or None."""
        return next(iter(self), None)

    def sizes(self, now: float, before: int, after: int) -> list[int]:
        """Return how many are in each of `before` bins before and `after` from that of `now` on."""
        current, bins = int(now // self.width), self._bins
        return [len(bins.get(i, ())) for i in range(current - before, current + after)]

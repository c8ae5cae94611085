"""Virtual time: entries act in order of time, simultaneous ones in order of entry."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[[Any], None]


class Agenda:
    """A heap of (time, sequence, act, argument); `now` is the time of the entry being acted on."""

    __slots__ = ("_heap", "_sequence", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Act, Any]] = []
        self._sequence = 0

    def at(self, time: float, act: Act, argument: Any = None) -> None:
        """Enter `act(argument)`; a time in the past means now."""
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, act, argument))

    def run(self, until: float) -> None:
        """Act on everything due before `until`, then set `now` to `until`."""
        heap = self._heap
        while heap and heap[0][0] < until:
            time, _, act, argument = heappop(heap)
            # max() and min() cost 90 ns more than a comparison; it counts in the innermost paths.
            self.now = time if time > self.now else self.now
            act(argument)
        self.now = until

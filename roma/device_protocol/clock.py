"""How two clocks differ, from questions and answers."""

import math
from collections import deque

from roma.device_protocol.messages import Pong


class ClockOffset:
    """How a worker's clock differs from one's own, by Cristian's algorithm.

    The answer that took least says most: the worker read its clock within half its round trip of
    the middle. Only the last `keep` answers count, because clocks drift.
    """

    def __init__(self, keep: int = 16) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=keep)

    def __repr__(self) -> str:
        return f"<ClockOffset {self.value} ± {self.error}>"

    def add(self, pong: Pong, received: float) -> None:
        """Take an answer that came at `received`, on one's own clock."""
        offset = pong.clock - (pong.sent + received) / 2
        self._samples.append((received - pong.sent, offset))

    @property
    def value(self) -> float | None:
        """Seconds by which the worker's clock is ahead; None while nothing is known."""
        return min(self._samples)[1] if self._samples else None

    @property
    def error(self) -> float:
        """Seconds by which `value` may be wrong at most."""
        return min(self._samples)[0] / 2 if self._samples else math.inf

    def to_worker(self, time: float) -> float:
        """Return one's own time on the worker's clock."""
        return time + self._known()

    def from_worker(self, time: float) -> float:
        """Return a time on the worker's clock on one's own."""
        return time - self._known()

    def _known(self) -> float:
        value = self.value
        assert value is not None, "nothing is known of the worker's clock yet"
        return value

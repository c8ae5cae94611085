"""Clock offset of a device, estimated from Ping and Pong."""

import math
from collections import deque

from roma.device_protocol.messages import Pong


class ClockOffset:
    """Offset of a device's clock from the local clock, by Cristian's algorithm.

    The answer with the shortest round trip is the most precise: the device read its clock within
    half the round trip of its middle. Only the last `keep` answers count, because clocks drift.
    """

    def __init__(self, keep: int = 16) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=keep)

    def __repr__(self) -> str:
        return f"<ClockOffset {self.value} ± {self.error}>"

    def add(self, pong: Pong, received: float) -> None:
        """Record an answer received at `received`, on the local clock."""
        offset = pong.clock - (pong.sent + received) / 2
        self._samples.append((received - pong.sent, offset))

    @property
    def value(self) -> float | None:
        """Seconds by which the device's clock is ahead; None before the first answer."""
        return min(self._samples)[1] if self._samples else None

    @property
    def error(self) -> float:
        """Largest possible error of `value`, in seconds."""
        return min(self._samples)[0] / 2 if self._samples else math.inf

    def to_device(self, time: float) -> float:
        """Convert a local time to the device's clock."""
        value = self.value
        assert value is not None, "nothing is known of the device's clock yet"
        return time + value

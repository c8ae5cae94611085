"""Heads of messages that were read before: who repeats one to the byte need not be parsed again.

A parser in C tells what is in a head by a dozen calls, which cost more than to serve the request.
"""

from typing import Final, Generic, TypeVar

MAX_HEADER_BYTES: Final = 1024
"""Bytes of a head that is remembered."""

CACHE_SIZE: Final = 1024
"""Heads that are remembered."""

END: Final = b"\r\n\r\n"

MAX_CONSECUTIVE_MISSES: Final = 8
"""Unknown heads in a row after which a sender counts as one whose heads are new each time, …"""

RECHECK_EVERY: Final = 64
"""… and is looked at again after so many messages: to remember one costs half of what it saves."""


class CachedHeader:
    """What a parser made of a head of `size` bytes in front of a body of `length` bytes."""

    __slots__ = ("length", "size")

    def __init__(self) -> None:
        self.size = 0
        self.length = 0


class MissStreak:
    """How one sender's heads were of late: `size` of the last known one, `misses` in a row."""

    __slots__ = ("misses", "size")

    def __init__(self) -> None:
        self.size = 0
        self.misses = 0

    @property
    def worth_caching(self) -> bool:
        """Whether it is worth while to look at the next one, and to remember it."""
        return self.misses < MAX_CONSECUTIVE_MISSES or self.misses % RECHECK_EVERY < 2


K = TypeVar("K", bound=CachedHeader)


class HeaderCache(Generic[K]):
    """What is known of heads, by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, K] = {}

    def of(self, data: bytes, sender: MissStreak) -> K | None:
        """Return what is known of the head, if `data` are one whole message; else None."""
        known = self._known.get(data[: sender.size])  # most often as long as the last one
        if known is None and sender.worth_caching:
            known = self._known.get(data[: data.find(END) + len(END)])
        if known is None or len(data) != known.size + known.length:
            sender.size = 0
            sender.misses += 1
            return None
        sender.size = known.size
        sender.misses = 0
        return known

    def keep(self, data: bytes, length: int, known: K) -> None:
        """Remember the head of the last message in `data`, whose body has this length.

        `data` begin with a message. Only a head in front of which nothing stands, and which is the
        same to whoever reads it: it ends with the first empty line, and there the body begins.
        Lines that end otherwise than by CRLF could hide an empty one (RFC 9112 §2.2).
        """
        size = len(data) - length
        if size > MAX_HEADER_BYTES or data.find(END) + len(END) != size or data.startswith(END[:2]):
            return
        head = data[:size]
        lines = head.count(END[:2])
        if head.count(b"\r") != lines or head.count(b"\n") != lines:
            return
        if len(self._known) >= CACHE_SIZE:
            self._known.clear()
        known.size, known.length = size, length
        self._known[head] = known

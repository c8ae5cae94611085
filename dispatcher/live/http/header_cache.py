"""Cache of parsed HTTP headers: a message that repeats them byte for byte is not parsed again.

A C parser reports headers in a dozen callbacks, which cost more than serving the request.
"""

from typing import Final, Generic, TypeVar

MAX_HEADER_BYTES: Final = 1024
"""Longest headers that are cached, in bytes."""

CACHE_SIZE: Final = 1024
"""Headers that are cached."""

END: Final = b"\r\n\r\n"

MAX_CONSECUTIVE_MISSES: Final = 8
"""Consecutive misses after which a sender counts as one whose headers are new each time, …"""

RECHECK_EVERY: Final = 64
"""… and is checked again after so many messages: caching costs half of what it saves."""


class CachedHeader:
    """Parsed headers of `size` bytes in front of a body of `length` bytes."""

    __slots__ = ("length", "size")

    def __init__(self) -> None:
        self.size = 0
        self.length = 0


class MissStreak:
    """Cache misses of one sender: `size` of its last cached headers, `misses` in a row."""

    __slots__ = ("misses", "size")

    def __init__(self) -> None:
        self.size = 0
        self.misses = 0

    @property
    def worth_caching(self) -> bool:
        """True if the next headers are worth looking up and caching."""
        return self.misses < MAX_CONSECUTIVE_MISSES or self.misses % RECHECK_EVERY < 2


K = TypeVar("K", bound=CachedHeader)


class HeaderCache(Generic[K]):
    """Cached headers by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, K] = {}

    def of(self, data: bytes, sender: MissStreak) -> K | None:
        """Return the cached headers if `data` is one whole message; else None."""
        known = self._known.get(data[: sender.size])  # most often as long as the last ones
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
        """Cache the headers of the last message in `data`, whose body has this length.

        `data` begins with a message. Headers are cached only if nothing precedes them.
        """
        head = whole_head(data, length)
        if head is None:
            return
        if len(self._known) >= CACHE_SIZE:
            # The oldest alone: what is in use is soon cached again, and memory stays as it is.
            del self._known[next(iter(self._known))]
        known.size, known.length = len(head), length
        self._known[head] = known


def whole_head(data: bytes, length: int) -> bytes | None:
    """Return the headers of a message with a body of this length, if every reader sees the same.

    They end with the first empty line, and the body begins there. None if `data` has more, if they
    are too long to keep, or if a line ends otherwise than with CRLF: that could hide an empty one
    (RFC 9112 §2.2).
    """
    size = len(data) - length
    if size > MAX_HEADER_BYTES or data.find(END) + len(END) != size or data.startswith(END[:2]):
        return None
    head = data[:size]
    lines = head.count(END[:2])
    return head if head.count(b"\r") == lines == head.count(b"\n") else None

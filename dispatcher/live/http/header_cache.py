"""Heads of messages that were read before: who repeats one to the byte need not be parsed again.

A parser in C tells what is in a head by a dozen calls, which cost more than to serve the request.
"""

from typing import Final, Generic, TypeVar

USUAL: Final = 1024
"""Bytes of a head that is remembered."""

MOST: Final = 1024
"""Heads that are remembered."""

END: Final = b"\r\n\r\n"

PATIENCE: Final = 8
"""Unknown heads in a row after which a sender counts as one whose heads are new each time, …"""

AGAIN: Final = 64
"""… and is looked at again after so many messages: to remember one costs half of what it saves."""


class Known:
    """What a parser made of a head of `size` bytes in front of a body of `length` bytes."""

    __slots__ = ("length", "size")

    def __init__(self) -> None:
        self.size = 0
        self.length = 0


class Habit:
    """How one sender's heads were of late: `size` of the last known one, `news` in a row since."""

    __slots__ = ("news", "size")

    def __init__(self) -> None:
        self.size = 0
        self.news = 0

    @property
    def may_repeat(self) -> bool:
        """Whether it is worth while to look at the next one, and to remember it."""
        return self.news < PATIENCE or self.news % AGAIN < 2


K = TypeVar("K", bound=Known)


class Heads(Generic[K]):
    """What is known of heads, by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, K] = {}

    def of(self, data: bytes, sender: Habit) -> K | None:
        """Return what is known of the head, if `data` are one whole message; else None."""
        known = self._known.get(data[: sender.size])  # most often as long as the last one
        if known is None and sender.may_repeat:
            known = self._known.get(data[: data.find(END) + len(END)])
        if known is None or len(data) != known.size + known.length:
            sender.size = 0
            sender.news += 1
            return None
        sender.size = known.size
        sender.news = 0
        return known

    def keep(self, data: bytes, length: int, known: K) -> None:
        """Remember the head of the last message in `data`, whose body has this length.

        `data` begin with a message. Only a head in front of which nothing stands, and which is the
        same to whoever reads it: it ends with the first empty line, and there the body begins.
        Lines that end otherwise than by CRLF could hide an empty one (RFC 9112 §2.2).
        """
        size = len(data) - length
        if size > USUAL or data.find(END) + len(END) != size or data.startswith(END[:2]):
            return
        head = data[:size]
        lines = head.count(END[:2])
        if head.count(b"\r") != lines or head.count(b"\n") != lines:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        known.size, known.length = size, length
        self._known[head] = known

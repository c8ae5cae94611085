"""Heads of messages that were read before: who repeats one to the byte need not be parsed again.

A parser in C tells what is in a head by a dozen calls, which cost more than to serve the request.
"""

from typing import Final, Generic, TypeVar

USUAL: Final = 1024
"""Bytes of a head that is remembered."""

MOST: Final = 1024
"""Heads that are remembered."""

END: Final = b"\r\n\r\n"


class Known:
    """What a parser made of a head of `size` bytes in front of a body of `length` bytes."""

    __slots__ = ("length", "size")

    def __init__(self) -> None:
        self.size = 0
        self.length = 0


K = TypeVar("K", bound=Known)


class Heads(Generic[K]):
    """What is known of heads, by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, K] = {}

    def of(self, data: bytes, guess: int) -> K | None:
        """Return what is known of the head, if `data` are one whole message; else None.

        `guess` is the size of the head that its sender sent last.
        """
        known = self._known.get(data[:guess])
        if known is None:
            known = self._known.get(data[: data.find(END) + len(END)])
            if known is None:
                return None
        return known if len(data) == known.size + known.length else None

    def keep(self, data: bytes, length: int, known: K) -> None:
        """Remember the head of the last message in `data`, whose body has this length.

        `data` begin with a message. Only a head in front of which nothing stands, and which is the
        same to whoever reads it: it ends with the first empty line, and there the body begins.
        Lines that end otherwise than by CRLF could hide an empty one (RFC 9112 §2.2).
        """
        size = len(data) - length
        if size > USUAL or data.find(END) + len(END) != size:
            return
        head = data[:size]
        lines = head.count(END[:2])
        if head.count(b"\r") != lines or head.count(b"\n") != lines:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        known.size, known.length = size, length
        self._known[head] = known

"""Headers that differ from the sender's last ones in a few values only, such as a new trace.

A sender's two last messages show which lines vary. The next one is not parsed if all its other
bytes are theirs, and each varying value is as long as before and visible ASCII: then its lines
begin and end where theirs did, and a parser would find the same names and the same framing.
"""

from collections.abc import Sequence
from typing import Final

from dispatcher.live.http.header_cache import END, HeaderCache, MissStreak, whole_head
from dispatcher.live.http.request import WANTED, Head

MAX_VARYING: Final = 8
"""Most lines that vary."""

LENGTH: Final = b"content-length"

VARYING: Final = frozenset(
    {LENGTH, b"traceparent", b"tracestate", b"x-request-id", b"x-request-start"}
)
"""Headers that the gateway reads and that may vary: no other value is derived from them."""

FRAMING: Final = frozenset(
    {b"keep-alive", b"proxy-connection", b"te", b"trailer", b"trailers", b"upgrade"}
)
"""Headers that the gateway does not read, but a parser may."""

VISIBLE: Final = bytes(range(0x21, 0x7F))

CRLF: Final = END[:2]


class HeadPattern:
    """Common part of a sender's last messages.

    `size` and `_head` are those of the last one; `_fixed` are the bytes around the varying values,
    with their places, and `_values` the places and names of these.
    """

    __slots__ = ("_fixed", "_head", "_lines", "_streak", "_values", "_varying", "size")

    def __init__(self) -> None:
        self.size = 0
        self._head: Head | None = None
        self._lines: Sequence[bytes] = ()
        self._varying: set[int] = set()
        self._fixed: list[tuple[int, int, bytes]] = []
        self._values: list[tuple[int, int, bytes]] = []
        self._streak = MissStreak()

    def forget(self) -> None:
        """Forget the last messages: a bound has changed."""
        self._head, self._lines = None, ()

    def of(self, data: bytes, most: int) -> Head | None:
        """Return the headers if `data` is one whole message that fits, else None.

        Its body has at most `most` bytes.
        """
        known = self._head
        if known is None:
            return None
        for start, end, text in self._fixed:
            if data[start:end] != text:
                return None
        length, found = known.length, []
        for start, end, name in self._values:
            value = data[start:end]
            if value.translate(None, VISIBLE):
                return None
            if name == LENGTH:
                if not value.isdigit():
                    return None
                length = int(value)
            if name:
                found.append((name, value))
        if len(data) != self.size + length or length > most:
            return None
        self._streak.misses = 0
        return known.again(found, length)

    def learn(self, data: bytes, length: int, head: Head) -> None:
        """Learn from a message that was parsed; its body has this length."""
        streak = self._streak
        streak.misses += 1
        self._head = None
        if not streak.worth_caching:
            self._lines = ()
            return
        text = whole_head(data, length)
        lines = () if text is None else text[: -len(END)].split(CRLF)
        last, self._lines = self._lines, lines
        if len(last) != len(lines) or not lines or last[0] != lines[0]:
            self._varying = set()
            return
        self._varying.update(i for i, line in enumerate(lines) if line != last[i])
        if self._places(last):
            self.size, head.size, head.length = len(data) - length, len(data) - length, length
            self._head = head
        else:
            self._varying = set()

    def _places(self, last: Sequence[bytes]) -> bool:
        """Set the places of what is fixed and of what varies; return False if it may not."""
        lines = self._lines
        if not 0 < len(self._varying) <= MAX_VARYING:
            return False
        self._fixed, self._values = [], []
        at, begin, fixed = 0, 0, b""
        for i, line in enumerate(lines):
            if i in self._varying:
                name, _, rest = line.partition(b":")
                value = rest.lstrip(b" \t")
                prefix = line[: len(line) - len(value)]
                known = _varying_name(name, lines)
                if known is None or not last[i].startswith(prefix):
                    return False
                if not value or value.translate(None, VISIBLE):
                    return False
                fixed += prefix
                start = at + len(prefix)
                self._fixed.append((begin, start, fixed))
                begin = at + len(line)
                self._values.append((start, begin, known))
                fixed = CRLF
            else:
                fixed += line + CRLF
            at += len(line) + len(CRLF)
        fixed += CRLF
        self._fixed.append((begin, begin + len(fixed), fixed))
        return True


def _varying_name(name: bytes, lines: Sequence[bytes]) -> bytes | None:
    """Return a header's name if its value may vary, empty if the gateway ignores it, else None."""
    name = name.lower()
    if name in VARYING:
        again = sum(line.partition(b":")[0].lower() == name for line in lines)
        return name if again == 1 else None  # several are one list
    return None if name in WANTED or name in FRAMING else b""


class KnownHeads:
    """Heads that need not be parsed: cached by the server, or like this sender's last ones."""

    __slots__ = ("_cache", "_streak", "pattern")

    def __init__(self) -> None:
        self._streak = MissStreak()
        self.pattern = HeadPattern()
        self._cache: HeaderCache[Head] | None = None
        """The server's cache when the pattern was learnt; a new one has new bounds."""

    def of(self, data: bytes, cache: HeaderCache[Head], most: int) -> Head | None:
        """Return the head if `data` is one whole message that fits, else None.

        Its body has at most `most` bytes.
        """
        head = self.pattern.of(data, most) if self._cache is cache else None
        return cache.of(data, self._streak) if head is None else head

    def keep(self, data: bytes, length: int, head: Head, cache: HeaderCache[Head]) -> None:
        """Keep the head of a message that was parsed; its body has this length."""
        if self._cache is not cache:
            self._cache = cache
            self.pattern.forget()
        if not head.is_framed:
            return
        if head.will_return and self._streak.worth_caching:
            cache.keep(data, length, head)
        if self._streak.misses > 1:  # a sender that repeats whole heads does not need the pattern
            self.pattern.learn(data, length, head)

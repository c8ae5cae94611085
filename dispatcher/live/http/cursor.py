"""The parser's position in a client's input, which the parser does not report.

llhttp is too lenient in two places that it does not show: the spelling of the request line (spaces,
RTSP for HTTP), and the size of a chunk. Everything else that it accepts has lengths and ends with
CRLF, so positions follow from its callbacks. The parser alone decides: if a position is lost, these
two checks are skipped.
"""

import re
from typing import Final

END: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_LOST: Final = -1
_MOST_DIGITS: Final = 16


class Cursor:
    """Tracks positions: `read` before each feed, `keep` after it, `on_…` for the callbacks."""

    __slots__ = ("_again", "_at", "_head", "_text")

    def __init__(self) -> None:
        self._at = 0
        self._head = 0
        """Position at which the last head begins."""
        self._again = b""
        """Input that is to be read once more."""
        self._text = b""
        """Bytes read so far, from the beginning of a message or of one of its lines."""

    def read(self, data: bytes) -> None:
        """Append new input."""
        self._text = self._text + data if self._text else data

    def keep(self) -> None:
        """Drop the input that the parser has consumed."""
        size = len(self._text)
        if self._at >= size:
            self._at -= size
            self._text = b""
        elif self._at >= 0:
            self._text = self._text[self._at :]
            self._at = 0
        else:
            self._text = b""

    def reset(self) -> None:
        """Start again: the parser is between two messages, and the next input is a new one."""
        self._at = 0
        self._text = b""

    def on_request_line(self, method: bytes, target: bytes) -> bool:
        """Return True if the request line is spelt as in RFC 9112 §3, for HTTP.

        Called when the headers are complete; the cursor is behind them then.
        """
        text, at = self._text, self._at
        if at < 0:
            return True
        size = len(text)
        while at < size and (text[at] == 13 or text[at] == 10):  # empty lines before it (§2.2)
            at += 1
        end = text.find(END, at)
        if end < 0:
            self._at = _LOST
            return True
        self._at, self._head = end + len(END), at
        return text.startswith(method + b" " + target + b" HTTP/", at)

    def repeat(self) -> bool:
        """Have the head that has just ended read once more, without its offer to upgrade.

        A server may ignore the offer (RFC 9110 §7.8), and Java's HTTP client makes one with every
        request; the parser would take what follows for another protocol. False if there is none to
        take out, or the position is lost.
        """
        text, start, end = self._text, self._head, self._at
        head = text[start:end] if end >= 0 else b""
        again = _UPGRADE.sub(b"\r\nignored", head)
        if again == head:
            return False
        self._again = again + text[end:]
        return True

    def repeated(self) -> bytes:
        """Return the input from the head on that is to be read once more; nothing without one."""
        again, self._again = self._again, b""
        if again:
            self._at, self._text = 0, again
        return again

    def on_length(self, length: bytes | None) -> None:
        """Skip a body with this length from the headers, if they have one."""
        if self._at >= 0 and length is not None:
            self._at += int(length)

    def on_chunk(self) -> int:
        """Return the size of the chunk that begins, 0 if unknown; skip it."""
        text, at = self._text, self._at
        end = text.find(b"\r\n", at) if at >= 0 else _LOST
        digits = text[at:end].partition(b";")[0].strip() if end >= 0 else b""
        if not digits or len(digits) > _MOST_DIGITS:
            self._at = _LOST
            return 0
        size = int(digits, 16)  # the parser has accepted it as a number
        self._at = end + 2
        if size:
            self._at += size + 2
        return size

    def on_end_of_chunks(self) -> None:
        """Skip the trailers."""
        text, at = self._text, self._at
        if at < 0:
            return
        if text.startswith(b"\r\n", at):
            self._at = at + 2
            return
        end = text.find(END, at)
        self._at = _LOST if end < 0 else end + len(END)

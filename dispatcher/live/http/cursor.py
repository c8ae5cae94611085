"""Where the parser is in what a client sent; it does not say so itself.

llhttp takes what it is told too readily in two places that it shows nobody: how the request line is
spelt (spaces, RTSP for HTTP), and how large a chunk will be. Everything else that it accepts has
lengths and ends by CRLF, so positions follow from what it reports. Nothing is decided here but by
the parser: where a position is lost, these two looks are left out.
"""

from typing import Final

END: Final = b"\r\n\r\n"
_LOST: Final = -1
_MOST_DIGITS: Final = 16


class Cursor:
    """`read` before each feed, `keep` after it; between them `on_…`, as the parser says it."""

    __slots__ = ("_at", "_text")

    def __init__(self) -> None:
        self._at = 0
        self._text = b""
        """Bytes that were read, from the first one of a message or of a line of it."""

    def read(self, data: bytes) -> None:
        """Go on with what came."""
        self._text = self._text + data if self._text else data

    def keep(self) -> None:
        """Forget what the parser is done with."""
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
        """Begin anew: the parser is between two messages, and what comes is the next one."""
        self._at = 0
        self._text = b""

    def on_request_line(self, method: bytes, target: bytes) -> bool:
        """Return whether the request line is spelt as RFC 9112 §3 has it, for HTTP.

        Called when the head is complete; the cursor stands behind it then.
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
        self._at = end + len(END)
        return text.startswith(method + b" " + target + b" HTTP/", at)

    def on_length(self, length: int) -> None:
        """Step over a body whose length the head said."""
        if self._at >= 0:
            self._at += length

    def on_chunk(self) -> int:
        """Return the size of the chunk that begins, 0 if that is not known; step over it."""
        text, at = self._text, self._at
        end = text.find(b"\r\n", at) if at >= 0 else _LOST
        digits = text[at:end].partition(b";")[0].strip() if end >= 0 else b""
        if not digits or len(digits) > _MOST_DIGITS:
            self._at = _LOST
            return 0
        size = int(digits, 16)  # the parser has read it: it is one
        self._at = end + 2
        if size:
            self._at += size + 2
        return size

    def on_end_of_chunks(self) -> None:
        """Step over the trailers."""
        text, at = self._text, self._at
        if at < 0:
            return
        if text.startswith(b"\r\n", at):
            self._at = at + 2
            return
        end = text.find(END, at)
        self._at = _LOST if end < 0 else end + len(END)

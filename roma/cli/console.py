"""Standard output: a console for wide tables, and what to do where nothing can be written."""

import io
import os
import sys
from typing import Any

from rich.console import Console

WIDTH = 140
"""Columns where the output is no terminal: rich would squeeze everything into 80."""

STANDARD_ERROR = 2


def wide_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


class StandardOutput(io.FileIO):
    """The descriptor behind standard output, which remembers why it could not be written."""

    fault: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write bytes, as `io.FileIO` does."""
        try:
            return super().write(data)
        except OSError as error:
            self.fault = error
            raise

    def discard(self) -> None:
        """Discard what is still buffered: Python would try to write it again when it ends."""
        os.dup2(_nowhere(), self.fileno())


class StandardError(io.FileIO):
    """The descriptor behind standard error, which drops what it cannot write.

    A program serves on after the reader of its messages has gone, and keeps its exit status.
    """

    def write(self, data: Any, /) -> int:
        """Write bytes, as `io.FileIO` does, or none."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> StandardOutput:
    """Put a fallback in place of closed streams, and of characters that an encoding lacks."""
    # In the order of the descriptors: a socket must not get one of theirs.
    out = sys.stdout
    encoding, errors = ("utf-8", "strict") if out is None else (out.encoding, out.errors)
    raw = StandardOutput(_nowhere() if out is None else out.fileno(), "w", closefd=False)
    # The log keeps this stream: its descriptor must never become that of a socket.
    told = _nowhere() if sys.stderr is None else STANDARD_ERROR
    buffer = io.BufferedWriter(StandardError(told, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=True)
    if errors in ("strict", "surrogateescape"):  # the latter is that of LC_ALL=C
        errors = "replace"
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
    return raw


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)

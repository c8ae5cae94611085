"""Log lines, for people or as JSON: one record is one line, whatever text a client sent.

Text from outside can contain line breaks, which would forge lines, and escape sequences, which
terminals obey. So control characters are escaped. Secrets must not be logged: no bodies, no
headers, no addresses that contain passwords.
"""

import asyncio
import json
import logging
import math
import re
import select
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

Format = Literal["console", "json"]
Level = Literal["debug", "info", "warning", "error"]

GRACE = 0.1
"""Seconds within which standard error must accept a line: its reader may be busy for a moment."""

INTERVAL = 1.0
"""Seconds in which frequent events of one label get one line."""

PIECE = 1024
"""Characters that are written at once: at most a page, which a pipe that is writable has left."""

FIELDS = (
    "request_id",
    "trace_id",
    "model",
    "executable",
    "outcome",
    "reason",
    "response_time",
    "status",
    "suppressed",
)
"""Fields that a record may carry beside its message (`extra`); JSON has them as keys, if set."""

# C0, DEL, C1; the line separators that are not control characters; bidirectional marks; and
# code points that are not characters.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_INDENT = "    "

_SHARED = frozenset({"model", "executable", "outcome", "reason", "status"})
"""Fields that records of one label share."""


def escaped(text: str) -> str:
    r"""Return text on one line, with control characters as \n, \x1b, \u2028."""
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


class ConsoleFormatter(logging.Formatter):
    """Local time, level, message; a traceback follows, indented, so that it cannot forge a line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line."""
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        """Return the traceback."""
        return _lines(super().formatException(ei), _INDENT)  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Return the stack at which the record was made."""
        return _lines(stack_info, _INDENT)


class JsonFormatter(logging.Formatter):
    """JSON lines, one object each: time, level, logger, message, and FIELDS if set.

    The time is RFC 3339 in UTC, with milliseconds.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escaped(record.getMessage()),
        }
        for name in FIELDS:
            value = record.__dict__.get(name)
            if value is not None:
                line[name] = _plain(value)
        if record.exc_info:
            line["exception"] = _lines(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _lines(record.stack_info)
        return json.dumps(line)


def apply(form: Format = "console", level: Level = "info") -> None:
    """Configure this process to log to standard error; a later call replaces the settings."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    if level != "debug":
        handler.addFilter(_is_no_client_fault)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # It reports its cache of fonts at INFO.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def _is_no_client_fault(record: logging.LogRecord) -> bool:
    """Return False for aiohttp's traceback of a request that is no HTTP: anyone can send many."""
    error = record.exc_info[0] if record.exc_info else None
    return (
        record.name != "aiohttp.server"
        or error is None
        or error.__module__ != "aiohttp.http_exceptions"
    )


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """ROMA's own handler; the class identifies it.

    A pipe whose reader has stopped must not stop the program: what it does not take within GRACE is
    left out, and the next lines at once, until it takes some again. Their number follows.
    """

    lost = 0
    """Lines left out since the last one that was written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless nobody reads them."""
        try:
            lines = [self.format(record)]
            if self.lost:
                text = "log lines left out because nothing read them: %d"
                args = (__name__, logging.WARNING, "", 0, text, (self.lost,), None)
                lines.insert(0, self.format(logging.LogRecord(*args)))
            text = "".join(f"{line}{self.terminator}" for line in lines)
            for at in range(0, len(text), PIECE):
                if not _takes(self.stream, 0 if self.lost else GRACE):
                    self.lost += 1
                    return
                self.stream.write(text[at : at + PIECE])
                self.stream.flush()
            self.lost = 0
        except Exception:  # as logging.StreamHandler does
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop a line that a full disk does not accept, without delaying requests.

        By default logging prints a traceback to standard error, which would fail too and take
        longer than a request.
        """
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _takes(stream: TextIO, seconds: float) -> bool:
    """Return whether a stream takes a piece within a time."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    except (OSError, ValueError):  # it is no file, or closed
        return True


@dataclass(slots=True)
class _Window:
    """State of one label since its last written line: the lines suppressed since then."""

    level: int
    shared: dict[str, object]
    timer: asyncio.TimerHandle
    suppressed: int = 0


class RateLimitedLogger:
    """A logger for frequent events: one line per label and `INTERVAL` seconds.

    The next line states how many were suppressed. Labels must be few: each is kept for `INTERVAL`.
    """

    def __init__(self, logger: logging.Logger, loop: asyncio.AbstractEventLoop) -> None:
        self._logger = logger
        self._loop = loop
        self._windows: dict[str, _Window] = {}

    def log(
        self,
        label: str,
        level: int,
        message: str,
        *args: object,
        fields: Mapping[str, object] | None = None,
        exc_info: bool = False,
    ) -> None:
        """Write a line or count it as suppressed; `label` identifies lines of the same kind."""
        if not self._logger.isEnabledFor(level):
            return
        window = self._windows.get(label)
        if window is not None:
            window.suppressed += 1
            return
        fields = fields or {}
        self._logger.log(level, message, *args, extra=fields, exc_info=exc_info)
        self._open(label, level, {k: v for k, v in fields.items() if k in _SHARED})

    def close(self) -> None:
        """Log the counts of lines suppressed so far."""
        for label, window in self._windows.items():
            window.timer.cancel()
            self._tell(label, window)
        self._windows.clear()

    def _open(self, label: str, level: int, shared: dict[str, object]) -> None:
        timer = self._loop.call_later(INTERVAL, self._on_end, label)
        self._windows[label] = _Window(level, shared, timer)

    def _on_end(self, label: str) -> None:
        window = self._windows.pop(label)
        if window.suppressed:
            self._tell(label, window)
            self._open(label, window.level, window.shared)

    def _tell(self, label: str, window: _Window) -> None:
        if window.suppressed:
            extra = {**window.shared, "suppressed": window.suppressed}
            self._logger.log(
                window.level, "%s: %d more like this", label, window.suppressed, extra=extra
            )


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value if isinstance(value, int) else escaped(str(value))


def _lines(text: str, indent: str = "") -> str:
    """Escape all but line breaks, which JSON escapes, and which no line can forge if indented."""
    return "\n".join(indent + escaped(line) for line in text.split("\n"))

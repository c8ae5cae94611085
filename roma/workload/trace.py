"""Trace files: recorded loads, read into send times.

The caller states the kind of the file; it is never guessed, because a column of small integers
could be counts or timestamps.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from roma.domain.errors import in_words
from roma.workload.arrivals import MOST_REQUESTS, from_counts, from_timestamps
from roma.workload.errors import WorkloadError

MOST_DIGITS = 9
"""Most digits of a count: a billion requests in a second is a fault in the file."""

MOST_QUOTED = 40
"""Most characters of a value that an error quotes: a file may be one line of megabytes."""

MOST_SECONDS = 10_000_000
"""Longest trace in seconds: four months."""


class TraceKind(StrEnum):
    """Meaning of each line of a trace file."""

    COUNTS = "counts"
    """The number of requests in one second; lines are successive seconds."""

    TIMESTAMPS = "timestamps"
    """The time of one request: seconds on any clock, or a date and time (ISO 8601)."""


T = TypeVar("T", int, float)


def read_trace(
    path: Path, kind: TraceKind, *, column: str | None = None, seed: int | None = None
) -> list[float]:
    """Return the send times recorded in a file.

    Without `column` a line is one value; blank lines and lines that start with `#` are skipped.
    With it the file is CSV whose first row names its columns. A byte order mark is skipped. `seed`
    spreads counts at random within their second (see `from_counts`); timestamps ignore it.

    Raises WorkloadError for a file that cannot be read or holds no value, for an unknown column,
    for a bad value, naming its line, and for more than `MOST_SECONDS`.
    """
    if kind is TraceKind.COUNTS:
        counts = _read(path, column, _counts)
        if (asked := sum(counts)) > MOST_REQUESTS:
            raise WorkloadError(
                f"trace {path}: asks for {asked} requests; must be at most {MOST_REQUESTS}"
            )
        times = from_counts(counts, seed=seed)
    else:
        times = from_timestamps(_read(path, column, _timestamps))
    if not times:
        raise WorkloadError(f"trace {path}: asks for 0 requests; must be at least 1")
    if times[-1] > MOST_SECONDS:
        last = f"{times[-1]:.12g} s"
        raise WorkloadError(f"trace {path}: lasts {last}; must be at most {MOST_SECONDS}")
    return times


def read_counts(path: Path, kind: TraceKind, *, column: str | None = None) -> list[int]:
    """Return the number of requests in each second of a file, up to the last one recorded.

    See `read_trace` for the formats and the errors raised.
    """
    if kind is TraceKind.COUNTS:
        counts = _read(path, column, _counts)
    else:
        seconds = Counter(int(time) for time in read_trace(path, kind, column=column))
        counts = [seconds[second] for second in range(max(seconds) + 1)]
    if not any(counts):
        raise WorkloadError(f"trace {path}: asks for 0 requests; must be at least 1")
    return counts


def _read(
    path: Path,
    column: str | None,
    values: Callable[[Iterable[tuple[int, str]], Path], Iterator[T]],
) -> list[T]:
    try:
        if path.is_char_device():
            raise WorkloadError(f"trace {path}: must be a regular file")
        with path.open(encoding="utf-8-sig", newline="") as lines:
            cells = _plain(lines) if column is None else _column(lines, path, column)
            return list(values(cells, path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"trace {path}: cannot be read: {in_words(error)}") from error


def _plain(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        cell = line.strip()
        if cell and not cell.startswith("#"):
            yield number, cell


def _column(lines: Iterable[str], path: Path, column: str) -> Iterator[tuple[int, str]]:
    rows = csv.DictReader(lines)
    names = rows.fieldnames or []
    if column not in names:
        raise WorkloadError(f"trace {path}: no column {column!r}; it has {', '.join(names)}")
    for row in rows:
        yield rows.line_num, (row[column] or "").strip()


def _counts(cells: Iterable[tuple[int, str]], path: Path) -> Iterator[int]:
    for line, cell in cells:
        # isdecimal also refuses "-3", "1.5" and "1_000", which int() or float() might accept.
        if not cell.isdecimal() or len(cell) > MOST_DIGITS:
            raise WorkloadError(
                f"trace {path}, line {line}: count {cell[:MOST_QUOTED]!r} is not an integer >= 0 "
                f"of at most {MOST_DIGITS} digits"
            )
        yield int(cell)


def _timestamps(cells: Iterable[tuple[int, str]], path: Path) -> Iterator[float]:
    for line, cell in cells:
        try:
            seconds = _seconds(cell)
            if not math.isfinite(seconds):
                raise ValueError
            yield seconds
        except ValueError:
            raise WorkloadError(
                f"trace {path}, line {line}: timestamp {cell[:MOST_QUOTED]!r} is not a number of "
                "seconds, nor a date and time like 2023-11-16 18:17:03.98"
            ) from None


def _seconds(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        moment = datetime.fromisoformat(cell)
        # A time without a zone is on the same clock as its neighbours; which clock does not matter.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

"""Trace files: recorded loads, read into send times.

What a file holds is said by the caller and never guessed: a column of small integers reads
equally well as counts and as timestamps.
"""

import csv
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from roma.load.arrivals import from_counts, from_timestamps
from roma.load.errors import LoadInputError


class TraceKind(StrEnum):
    """What each line of a trace file is."""

    COUNTS = "counts"
    """The number of requests in one second; lines are successive seconds."""

    TIMESTAMPS = "timestamps"
    """The time of one request, in seconds on any clock."""


def read_trace(
    path: Path, kind: TraceKind, *, column: str | None = None, seed: int | None = None
) -> list[float]:
    """Return the send times recorded in a file.

    Without `column` a line is one value; blank lines and lines that start with `#` are skipped.
    With it the file is CSV whose first row names its columns. `seed` spreads counts at random
    within their second (see `from_counts`); timestamps ignore it.

    Raises LoadInputError for a file that cannot be read or holds no value, for an unknown column,
    and for a bad value, naming its line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            cells = _plain(lines) if column is None else _column(lines, path, column)
            times = _times(cells, path, kind, seed)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LoadInputError(f"trace {path}: {error}") from error
    if not times:
        raise LoadInputError(f"trace {path}: asks for 0 requests; must be at least 1")
    return times


def _times(
    cells: Iterable[tuple[int, str]], path: Path, kind: TraceKind, seed: int | None
) -> list[float]:
    match kind:
        case TraceKind.COUNTS:
            return from_counts(_counts(cells, path), seed=seed)
        case TraceKind.TIMESTAMPS:
            return from_timestamps(_timestamps(cells, path))


def _plain(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        cell = line.strip()
        if cell and not cell.startswith("#"):
            yield number, cell


def _column(lines: Iterable[str], path: Path, column: str) -> Iterator[tuple[int, str]]:
    rows = csv.DictReader(lines)
    names = rows.fieldnames or []
    if column not in names:
        raise LoadInputError(f"trace {path}: no column {column!r}; it has {', '.join(names)}")
    for row in rows:
        yield rows.line_num, (row[column] or "").strip()


def _counts(cells: Iterable[tuple[int, str]], path: Path) -> Iterator[int]:
    for line, cell in cells:
        # isdecimal also refuses "-3", "1.5" and "1_000", which int() or float() might accept.
        if not cell.isdecimal():
            raise LoadInputError(
                f"trace {path}, line {line}: count {cell!r} is not an integer >= 0"
            )
        yield int(cell)


def _timestamps(cells: Iterable[tuple[int, str]], path: Path) -> Iterator[float]:
    for line, cell in cells:
        try:
            yield float(cell)
        except ValueError:
            raise LoadInputError(
                f"trace {path}, line {line}: timestamp {cell!r} is not a number of seconds"
            ) from None

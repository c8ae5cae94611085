"""Request bodies: real ones, from a file or from the caller, ready before the first send.

A body is sent unchanged; nothing is encoded while the load runs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from roma.domain.errors import in_words
from roma.tools.load.errors import LoadInputError

LINE_SUFFIXES = frozenset({".jsonl", ".ndjson"})

Bodies = Callable[[int], bytes]
"""The body of a stream's n-th request, n = 0, 1, 2…; must be quick and must not block."""


def cycled(bodies: Sequence[bytes]) -> Bodies:
    """Return the bodies in order, over and over.

    Raises LoadInputError if there are none.
    """
    if not bodies:
        raise LoadInputError("0 request bodies: must be at least 1")
    fixed = tuple(bodies)
    return lambda index: fixed[index % len(fixed)]


def read_bodies(path: Path) -> tuple[bytes, ...]:
    """Return the bodies in a file.

    A name that ends in `.jsonl` or `.ndjson` holds one JSON body per line (blank lines are
    skipped); any other file is one JSON body.

    Raises LoadInputError for a file that cannot be read, holds no body or is not JSON, naming the
    line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadInputError(f"bodies {path}: cannot be read: {in_words(error)}") from error
    by_line = path.suffix.lower() in LINE_SUFFIXES
    pieces = content.split(b"\n") if by_line else [content]
    bodies = []
    for line, piece in enumerate(pieces, start=1):
        body = piece.strip()
        if not body:
            continue
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            where = f", line {line}" if by_line else ""
            raise LoadInputError(f"bodies {path}{where}: not JSON: {error}") from error
        bodies.append(body)
    if not bodies:
        raise LoadInputError(f"bodies {path}: holds 0 bodies; must be at least 1")
    return tuple(bodies)

"""The decision log as files: JSON lines in a directory, for `roma report` and later analysis.

    decisions-WORKER.jsonl   one line per executable and control period (supervisor/decision_log.py)
    models.jsonl             one line per model and second (roma/ui/dashboard/moments.py)

A full or slow disk loses lines; it never delays a control period or a request.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import orjson

from roma.domain.errors import ConfigError, in_words

MODELS = "models"

LARGEST = 64 * 2**20
"""Bytes at which a file is rotated to NAME+1.jsonl, replacing the previous one."""

EPOCH = 1e8
"""Times in seconds below this (before 1973) belong to a simulation, which begins at 0."""

LAST = 1.0
"""Most seconds for writing the last lines."""

log = logging.getLogger(__name__)


def decisions(worker: str) -> str:
    """Return the file name of a worker's decisions."""
    return f"decisions-{worker}"


class DecisionLog:
    """Writer that appends records to files of a directory; `fresh` begins with none."""

    def __init__(self, directory: Path, *, fresh: bool = False, largest: int = LARGEST) -> None:
        self.directory = directory
        self._fresh = fresh
        self._largest = largest
        self._failing = False
        self._writing: Future[None] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"decision log = {directory}: cannot be written: {in_words(error)}"
            ) from error

    def offer(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records on a separate thread; records offered while the disk hangs are lost."""
        if self._writing is not None and not self._writing.done():
            self._fail("the disk does not keep up")
            return
        self._writing = done = Future[None]()

        def write() -> None:
            try:
                self.write(name, records)
            finally:
                done.set_result(None)

        try:
            # A daemon: the interpreter does not wait for a disk that hangs.
            threading.Thread(target=write, name="decision log", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            done.set_result(None)
            self._fail(str(error))

    async def close(self, name: str = "", records: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the last records; if the disk hangs they are lost, and the program still ends."""
        if self._writing is not None:
            await asyncio.wait([asyncio.wrap_future(self._writing)], timeout=LAST)
        if records:
            self.offer(name, records)
            assert self._writing is not None
            await asyncio.wait([asyncio.wrap_future(self._writing)], timeout=LAST)

    def write(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records to the file `name`; a failure is logged once, its records are lost."""
        path = self.directory / f"{name}.jsonl"
        try:
            lines = b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records)
            self.directory.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
            if self._fresh:  # of the last run, other workers may have decided
                last = self.directory.glob(f"{decisions('*')}.jsonl")
                for old in (*last, *files(self.directory, MODELS)):
                    old.unlink(missing_ok=True)
                self._fresh = False
            with path.open("ab") as file:
                file.write(lines)
                full = file.tell() >= self._largest
            if full:
                path.replace(self.directory / f"{name}+1.jsonl")
        except (OSError, TypeError) as error:  # TypeError: a text that is no UTF-8
            self._fail(str(error))
        else:
            self._failing = False

    def _fail(self, why: str) -> None:
        if not self._failing:  # once per failure, not once per second
            log.warning("decision log = %s: lines are lost: %s", self.directory, why)
        self._failing = True


def is_live(file: Path) -> bool:
    """Return whether a file begins with a record of a live run."""
    try:
        with file.open("rb") as lines:
            return bool(orjson.loads(lines.readline())["at"] >= EPOCH)
    except (OSError, ValueError, LookupError, TypeError):  # no record at all
        return False


def files(directory: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of the files with records of this name, oldest first."""
    return directory / f"{name}+1.jsonl", directory / f"{name}.jsonl"

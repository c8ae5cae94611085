"""Watched files: content is read again on change; the last valid content stays in force.

New content is read and validated as a whole, off the event loop, and takes effect by one
assignment: no reader sees half of it.
"""

import asyncio
import logging
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from roma.domain.errors import ConfigError, naming
from roma.telemetry.tasks import background

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two checks of the files."""

MOST_LINKS = 40
"""Most links in a row that Linux follows."""

Stamp = tuple[int, int, int]

T = TypeVar("T")


class Looks(Protocol):
    """An object that checks its files on request."""

    def look(self) -> bool:
        """Read the files if they have changed; return whether new content is in force."""


class Watched(Generic[T]):
    """Content of files; `read` raises ConfigError, also at construction, prefixed by `key`."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], key: str = "") -> None:
        self._paths = tuple(paths)
        self._make = read
        self._key = key
        # Before they are read: a change in the meantime is seen at the next check.
        self._seen = self._stamps()
        self._fault = ""
        self.value = self._read()

    def __repr__(self) -> str:
        # The content may be secret.
        return f"<Watched {', '.join(map(str, self._paths))}>"

    def look(self) -> bool:
        """Read the files if they have changed; return whether new content is in force.

        What cannot be read is tried again each time, and its fault logged once: that it can be read
        again need not show in the file, if a directory or an owner was the reason.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            self._fault = ""
            return False
        try:
            for path in self._paths:
                check_regular(path)
            self.value = self._read()
        except ConfigError as error:
            if str(error) != self._fault:
                log.error("%s; what it said before stays in force", error)
            self._fault = str(error)
            return False
        except Exception:  # a bug, which is logged once
            self._seen = stamps
            raise
        self._seen, self._fault = stamps, ""
        log.info("read anew: %s", ", ".join(map(str, self._paths)))
        return True

    def _read(self) -> T:
        with naming(self._key):
            return self._make()

    def _stamps(self) -> list[Stamp | None]:
        return [stamp(path) for path in self._paths]


def looking(*files: Looks | None) -> AbstractAsyncContextManager[object]:
    """Check these files, of which some may be None, once a second until the block ends."""
    return background(keep_looking([file for file in files if file is not None], LOOK))


async def keep_looking(watched: Sequence[Looks], period: float = LOOK) -> None:
    """Check the files once a period until cancelled."""
    while watched:
        await asyncio.sleep(period)
        # In a thread: reading a file with ten thousand keys takes longer than requests can wait.
        await asyncio.to_thread(_look, watched)


def _look(watched: Sequence[Looks]) -> None:
    for one in watched:
        try:
            one.look()
        except Exception:  # a revoked key must not live on because another file was odd
            log.exception("%r could not be looked at", one)


def stamp(path: Path) -> Stamp | None:
    """Return a stamp that identifies a version of a file; None while the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def home(file: Path) -> Path:
    """Return the directory from which relative paths in a file count: where links lead.

    But a link to a directory beside it stays: a cluster changes the files of a volume by leading
    such a link to a new directory and removing the old one, which a path must not name. `..` means
    the same behind both, also for engines that take it for text.
    """
    file = file.absolute()
    for _ in range(MOST_LINKS):
        if not file.is_symlink():
            break
        file = file.parent / file.readlink()
    found, parent = file.parent.resolve(), file.parent.parent.resolve()
    return parent / file.parent.name if found.parent == parent else found


def check_regular(path: Path) -> None:
    """Raise ConfigError for what exists and is no file: reading a named pipe would never end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads it says why it cannot be read
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: not a regular file")

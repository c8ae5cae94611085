"""What files say, read anew when they change; what was good last stands until they are good again.

The new content is read and validated whole, off the event loop, and taken over by one assignment:
nobody sees half of it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from roma.domain.errors import ConfigError, naming

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at the files."""

Stamp = tuple[int, int, int]

T = TypeVar("T")


class Looks(Protocol):
    """What looks at its files when it is told to."""

    def look(self) -> bool:
        """Read the files if they have changed; return whether something new holds."""


class Watched(Generic[T]):
    """The content of files; `read` raises ConfigError, at construction too, after `key`."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], key: str = "") -> None:
        self._paths = tuple(paths)
        self._make = read
        self._key = key
        # Before they are read: what changes meanwhile is seen at the next look.
        self._seen = self._stamps()
        self.value = self._read()

    def __repr__(self) -> str:
        # The content may be secret.
        return f"<Watched {', '.join(map(str, self._paths))}>"

    def look(self) -> bool:
        """Read the files if they have changed; return whether something new holds."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.value = self._read()
        except ConfigError as error:
            log.error("%s; what it said before stays in force", error)
            return False
        log.info("read anew: %s", ", ".join(map(str, self._paths)))
        return True

    def _read(self) -> T:
        with naming(self._key):
            return self._make()

    def _stamps(self) -> list[Stamp | None]:
        return [stamp(path) for path in self._paths]


async def keep_looking(watched: Sequence[Looks], period: float = LOOK) -> None:
    """Look once a period until cancelled."""
    while watched:
        await asyncio.sleep(period)
        # In a thread: a file of ten thousand keys takes longer to read than requests can wait.
        await asyncio.to_thread(_look, watched)


def _look(watched: Sequence[Looks]) -> None:
    for one in watched:
        try:
            one.look()
        except Exception:  # a revoked key must not live on because another file was odd
            log.exception("%r could not be looked at", one)


def stamp(path: Path) -> Stamp | None:
    """Return what tells one version of a file from another; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

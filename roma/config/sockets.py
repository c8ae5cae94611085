"""Unix sockets: how an address of roma.yaml is reached, and the file that a server listens at."""

import contextlib
import errno
import os
import socket
from pathlib import Path

import aiohttp

from roma.config.workers import UNIX


def reached(url: str, *, limit: int = 100) -> tuple[str, aiohttp.BaseConnector]:
    """Return the root of an address's URLs, and the connector to them.

    `limit` bounds its connections, 0 does not. To be called in a running loop.
    """
    if url.startswith(UNIX):
        return "http://localhost", aiohttp.UnixConnector(url.removeprefix(UNIX), limit=limit)
    return url, aiohttp.TCPConnector(limit=limit)


def refuse_taken(path: Path) -> None:
    """Raise OSError if a server answers at `path`: asyncio and gRPC would take it away from it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) in (0, errno.EAGAIN):  # the latter: its backlog is full
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def refusal(path: Path) -> OSError | None:
    """Return why nobody can listen at `path`, by trying it; None if one could."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError as error:
        return error
    path.unlink()
    return None


class SocketFile:
    """The file of a Unix socket that this process listens at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = path.stat().st_ino

    def remove(self) -> None:
        """Delete it, unless a successor listens at its path."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

"""Sockets: clients for addresses of roma.yaml, Unix sockets among them; what hinders a server."""

import contextlib
import errno
import os
import socket
from pathlib import Path
from urllib.parse import quote

import aiohttp

from roma.config.workers import UNIX


def reached(url: str, *, limit: int = 100) -> tuple[str, aiohttp.BaseConnector]:
    """Return the base URL of an address, and a connector for it.

    `limit` bounds its connections; 0 means no limit. Must be called in a running loop.
    """
    if url.startswith(UNIX):
        return "http://localhost", aiohttp.UnixConnector(url.removeprefix(UNIX), limit=limit)
    return url, aiohttp.TCPConnector(limit=limit)


def for_grpc(path: Path) -> str:
    """Return gRPC's address of a Unix socket; there `%41` is an A."""
    return f"{UNIX}{quote(str(path.absolute()))}"


def is_taken(path: Path) -> bool:
    """Return True if a server listens at `path`, whether or not it accepts connections."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)  # the latter: its backlog is full


def refuse_taken(path: Path) -> None:
    """Raise OSError if a server listens at `path`: asyncio and gRPC would take over its socket."""
    if is_taken(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def refusal(path: Path) -> OSError | None:
    """Try to listen at `path`; return the error, or None if it works."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError as error:
        return error
    path.unlink()
    return None


def port_refusal(host: str, port: int) -> OSError | None:
    """Try to listen on a port; return the error, or None if it works."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return None
    except OSError as error:
        return error


class SocketFile:
    """The file of a Unix socket that this process listens on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = path.stat().st_ino

    def remove(self) -> None:
        """Delete the file, unless a successor listens at its path."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

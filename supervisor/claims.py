"""Claims on cgroups: one supervisor per quota, or two laws would alternate in setting it.

A claim is a POSIX lock on a group's `cgroup.procs`, in both versions of cgroups. The kernel drops
it when its process exits, for any reason. Taking it needs the right to write that file, so no other
user can hold it. The kernel also reports which process holds it. Such a lock is lost when its
process closes any descriptor of the file: this program opens it nowhere else.
"""

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from roma.domain.errors import TakenError
from supervisor.cgroups import Group

_FLOCK = "hhqqi4x"
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""


class Claims:
    """The groups that this program claims, until it ends."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def take(self, groups: Iterable[Group]) -> None:
        """Claim these and give up all others; raise TakenError, which changes nothing.

        A group that does not exist, or that this process may not write, is not claimed: setting its
        quota fails with the reason.
        """
        wanted = [group.directories[0] / "cgroup.procs" for group in groups]
        fresh: dict[Path, int] = {}
        try:
            for path in wanted:
                if not self._holds(path) and (descriptor := _open(path)) is not None:
                    fresh[path] = descriptor
                    _lock(path, descriptor)
        except TakenError:
            _close(fresh.values())
            raise
        gone = set(self._held).difference(wanted).union(fresh)
        _close([self._held.pop(path) for path in gone if path in self._held])
        self._held |= fresh

    def _holds(self, path: Path) -> bool:
        """Return True if a path is claimed and is still the group that was claimed there."""
        descriptor = self._held.get(path)
        try:
            return descriptor is not None and os.path.samestat(os.fstat(descriptor), path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Give up all claims."""
        _close(self._held.values())
        self._held.clear()


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[4]
        # 0: of another PID namespace, or it has exited since.
        holder = f"process {pid}" if pid else "a process of another container"
        raise TakenError(f"cgroup {path.parent}: {holder} of this host controls it") from None


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

"""Edits of files by commands: one at a time, written whole or not at all, through links.

An edit keeps the file's mode, and its owner and group where the system permits it. Errors are
`ConfigError` with one line that names the file.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from roma.domain.errors import ConfigError


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Keep other commands' edits of a file out until the block ends.

    The lock is on the directory, since the file itself is replaced.
    """
    try:
        descriptor = os.open(file.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise _unwritable(file, error) from error
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(file: Path, text: str) -> None:
    """Replace the file that a path leads to; a new one is readable by its owner alone."""
    file = file.resolve()
    scratch = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        before = file.stat() if file.exists() else None
        # Never readable by more, not even for a moment.
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            if before is not None:
                for owner in (-1, before.st_uid):  # a group may be permitted where an owner is not
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, owner, before.st_gid)
                is_same_group = os.fstat(descriptor).st_gid == before.st_gid
                os.fchmod(descriptor, before.st_mode & (0o777 if is_same_group else 0o700))
            out.write(text)
            out.flush()
            os.fsync(descriptor)
        scratch.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: Exception) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) else "its links form a circle"
    return ConfigError(f"{file}: cannot be written: {why}")

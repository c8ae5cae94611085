"""Edits of files by commands, and results of commands: written whole or not at all, through links.

Edits are made one at a time; errors are `ConfigError` with one line that names the file. A file
that is replaced keeps its mode, and its owner and group where the system permits it.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from roma.domain.errors import ConfigError, in_words

_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Why a file cannot be replaced although it can perhaps be written: EBUSY is a mount of its own."""


@contextlib.contextmanager
def alone(file: Path) -> Iterator[None]:
    """Keep other commands' edits of a file out until the block ends.

    The lock is on the directory, since the file itself is replaced.
    """
    if file.exists() and not file.is_file():  # /dev/full would be read for ever, and replaced
        raise ConfigError(f"{file}: cannot be edited: must be a regular file")
    try:
        descriptor = os.open(file.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "its links form a circle"
        raise ConfigError(f"{file}: cannot be written: {why}") from error
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no directories
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise ConfigError in place of an OSError of the block; `what` names an option or a file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what}: cannot be written: {in_words(error)}") from error


def make(directory: Path, option: str) -> None:
    """Make the directory of an option; raise ConfigError if nothing can be written there."""
    with writing(f"{option} = {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=directory).close()


def write(file: Path, text: str) -> None:
    """Replace the file that a path leads to; a new one is readable by its owner alone."""
    file = file.resolve()
    with writing(str(file)):
        _replace(file, text.encode(), 0o600)


def output(file: Path, content: str | bytes) -> None:
    """Write a command's result, whole or not at all; raise OSError that names the file.

    Devices and pipes, and files in a directory that cannot be written, are written in place.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(file))
    try:
        if _is_special(file):
            file.write_bytes(data)
            return
        try:
            _replace(target, data, 0o666)
        except OSError as error:
            if error.errno not in _IN_PLACE or not target.is_file():
                raise
            target.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _is_special(file: Path) -> bool:
    # /dev/stdout may lead to a file that the shell has opened: it must stay the same one.
    devices = file.absolute().parts[1:2] in (("dev",), ("proc",))
    return devices or (file.exists() and not file.is_file())


def _replace(file: Path, data: bytes, mode: int) -> None:
    """Replace a file, or make it with this mode less the umask."""
    scratch = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        before = file.stat() if file.exists() else None
        # Never readable by more, not even for a moment.
        first = mode if before is None else 0o600
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, first)
        with os.fdopen(descriptor, "wb") as out:
            if before is not None:
                for owner in (-1, before.st_uid):  # a group may be permitted where an owner is not
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, owner, before.st_gid)
                is_same_group = os.fstat(descriptor).st_gid == before.st_gid
                os.fchmod(descriptor, before.st_mode & (0o777 if is_same_group else 0o700))
            out.write(data)
            out.flush()
            os.fsync(descriptor)
        scratch.replace(file)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise

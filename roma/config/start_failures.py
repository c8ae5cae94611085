"""Start failures: the reasons of model servers that cannot run, passed to the dispatchers.

A program that gives up writes its reason to the file that `FAULT_FILE` names. The launcher, which
notices its end, keeps one file with the reasons of all programs that do not run; dispatchers watch
that file.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError, RomaError, in_words

FAULT_FILE = "ROMA_FAULT_FILE"
"""Environment variable with the file for the reason of a program that gives up."""

MOST = 500
"""Most characters of a reason."""


def leave(error: RomaError) -> None:
    """Write a reason to the file that this program's parent asked for, if any."""
    path = os.environ.get(FAULT_FILE)
    if path:
        try:
            Path(path).write_text(str(error), encoding="utf-8")
        except OSError:
            return  # it is on standard error as well


def left(path: Path) -> str:
    """Return the reason that a program wrote, in one line; an empty string if there is none."""
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split())[:MOST]
    except OSError:
        return ""


def write(faults: Mapping[str, str], file: Path) -> None:
    """Write the reasons by executable, atomically."""
    scratch = file.with_suffix(".new")
    scratch.write_bytes(orjson.dumps(dict(faults)))
    scratch.replace(file)


def watched(file: Path | None) -> Watched[Mapping[str, str]] | None:
    """Return the reasons that a launcher keeps in a file; raise ConfigError if it is invalid."""
    return None if file is None else Watched([file], lambda: _read(file))


def _read(file: Path) -> Mapping[str, str]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"faults = {file}: cannot be read: {in_words(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ConfigError(f"faults = {file}: must be an object of reasons by executable")
    return found

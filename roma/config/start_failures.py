"""Reasons why model servers cannot run, from those that know to those that tell.

A program that gives up leaves its reason in the file that `FAULT_FILE` names. The launcher, which
sees it end, keeps one file with the reasons of all that do not run; dispatchers watch that.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from roma.config.watched_file import Watched
from roma.domain.errors import ConfigError, RomaError

FAULT_FILE = "ROMA_FAULT_FILE"
"""Environment variable: the file for the reason of a program that gives up."""

MOST = 500
"""Characters of a reason."""


def leave(error: RomaError) -> None:
    """Leave a reason for whoever started this program, if somebody did who wants it."""
    path = os.environ.get(FAULT_FILE)
    if path:
        try:
            Path(path).write_text(str(error))
        except OSError:
            return  # it is on standard error as well


def left(path: Path) -> str:
    """Return the reason that a program left, in one line; an empty string if it left none."""
    try:
        return " ".join(path.read_text(errors="replace").split())[:MOST]
    except OSError:
        return ""


def write(faults: Mapping[str, str], file: Path) -> None:
    """Write the reasons by executable, whole or not at all."""
    scratch = file.with_suffix(".new")
    scratch.write_bytes(orjson.dumps(dict(faults)))
    scratch.replace(file)


def watched(file: Path | None) -> Watched[Mapping[str, str]] | None:
    """Return the reasons that a launcher keeps in a file; raise ConfigError if it holds none."""
    return None if file is None else Watched([file], lambda: _read(file))


def _read(file: Path) -> Mapping[str, str]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"faults = {file}: cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ConfigError(f"faults = {file}: must be an object of reasons by executable")
    return found

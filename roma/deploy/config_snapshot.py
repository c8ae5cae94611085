"""A snapshot of the accepted configuration, complete and with absolute paths, for the programs.

A program may restart at any time. It must then read the configuration that was accepted, not a file
that is being edited.
"""

from pathlib import Path
from typing import Any

from roma.config import yaml_file
from roma.config.schema import Config
from roma.domain.errors import LaunchError


def plain(config: Config) -> dict[str, Any]:
    """Return a loaded configuration as roma.yaml would express it, with its source files."""
    complete = config.model_copy(
        update={
            "preset": None,  # its keys are filled in: again, they would win over equal defaults
            "profile": None,
            "plant": None,
            "control": config.control.model_copy(update={"gains_file": None}),
        }
    )
    return complete.model_dump(mode="json", exclude_defaults=True)


def write(config: Config, file: Path) -> None:
    """Write a configuration atomically; raise LaunchError if that is impossible."""
    scratch = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(yaml_file.dump(plain(config)), encoding="utf-8")
        scratch.replace(file)
    except OSError as error:
        raise LaunchError(f"{file}: cannot be written: {error.strerror}") from error

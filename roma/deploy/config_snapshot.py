"""A snapshot of the accepted configuration, complete and with absolute paths, for the programs.

A program may restart at any time. It must then read the configuration that was accepted, not a file
that is being edited.
"""

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from roma.config import yaml_file
from roma.config.schema import Config
from roma.domain.errors import LaunchError


def plain(config: Config) -> dict[str, Any]:
    """Return a loaded configuration as roma.yaml would express it, with its source files."""
    complete = config.model_copy(
        update={
            # Already filled in: if kept, it would override keys whose value is the default.
            "preset": None,
            "profile": None,
            "plant": None,
            "control": config.control.model_copy(update={"gains_file": None}),
        }
    )
    return complete.model_dump(mode="json", exclude_defaults=True)


def write(config: Config, file: Path) -> None:
    """Write a configuration atomically; raise LaunchError if that is impossible."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own: nothing that lies there is followed or kept.
        with NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as scratch:
            try:
                scratch.write(yaml_file.dump(plain(config)))
                scratch.flush()
                Path(scratch.name).replace(file)
            except OSError:  # tried again and again, they would pile up
                Path(scratch.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise LaunchError(f"{file}: cannot be written: {error.strerror}") from error

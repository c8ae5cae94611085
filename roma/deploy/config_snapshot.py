"""A snapshot of the accepted configuration, complete and with absolute paths, for the programs.

A program may restart at any time. It must then read the configuration that was accepted, not a file
that is being edited.
"""

from pathlib import Path
from typing import Any

import yaml

from roma.config.schema import Config


def plain(config: Config) -> dict[str, Any]:
    """Return a loaded configuration as roma.yaml would express it, with its source files."""
    complete = config.model_copy(
        update={
            "profile": None,
            "plant": None,
            "control": config.control.model_copy(update={"gains_file": None}),
        }
    )
    return complete.model_dump(mode="json", exclude_defaults=True)


def write(config: Config, file: Path) -> None:
    """Write a configuration atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    scratch.write_text(yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True))
    scratch.replace(file)

"""A configuration as a file of its own: complete, with absolute paths, for the programs started.

They can be started again at any time, and must find what was accepted then, not what somebody is
just writing.
"""

from pathlib import Path
from typing import Any

import yaml

from roma.config.schema import Config


def plain(config: Config) -> dict[str, Any]:
    """Return a loaded configuration as roma.yaml would say it; what it was read from is in it."""
    complete = config.model_copy(
        update={
            "profile": None,
            "plant": None,
            "control": config.control.model_copy(update={"gains_file": None}),
        }
    )
    return complete.model_dump(mode="json", exclude_defaults=True)


def write(config: Config, file: Path) -> None:
    """Write a configuration, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    scratch.write_text(yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True))
    scratch.replace(file)

"""A roma.yaml as the command line loads it: checked by the registries, with its log settings."""

from pathlib import Path

from controllers import registry
from roma.config import schema
from roma.config.schema import Config
from roma.domain.errors import naming
from roma.telemetry import logs


def checked(file: Path) -> Config:
    """Load a file and check what only the registries know; raises ConfigError."""
    loaded = schema.load(file)
    with naming(str(file)):
        registry.build(loaded.control.law, loaded.control.gains)
    return loaded


def program(file: Path) -> Config:
    """Load the file that a program runs by, and log from now on as it says."""
    loaded = checked(file)
    logs.apply(loaded.log.format, loaded.log.level)
    return loaded

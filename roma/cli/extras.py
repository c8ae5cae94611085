"""Extras: packages that some commands need beyond ROMA's own dependencies."""

from importlib.util import find_spec

from roma.domain.errors import ConfigError


def required(command: str, extra: str, *modules: str) -> None:
    """Raise ConfigError naming the extra if one of these modules is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise ConfigError(
                f"{command} needs {module}: pip install 'roma-control-plane[{extra}]'"
            )

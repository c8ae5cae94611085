"""Control laws by their names in roma.yaml (`roma.config.names`), with their wrappers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from controllers.base import Law
from controllers.shaping import bounded, holding
from roma.config import names
from roma.domain.errors import ConfigError

LAWS: dict[str, list[Any]] = {name: names.load(path) for name, path in names.LAWS.items()}
"""Gains and step function by name."""


def build(name: str, gains: Mapping[str, float | str]) -> Law:
    """Return the named law with its gains and wrappers; raise `ConfigError` naming a bad gain."""
    checked = checked_gains(name, gains)
    law: Law = partial(LAWS[name][1], checked)
    return holding(bounded(law))


def checked_gains(name: str, given: Mapping[str, float | str]) -> Any:
    """Return the gains of the named law, the others at their defaults; raise `ConfigError`."""
    if name not in LAWS:
        raise ConfigError(f"control.law = {name}: must be one of {', '.join(LAWS)}")
    gains_type = LAWS[name][0]
    known = list(gains_type.__dataclass_fields__)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"control.gains.{key} = {given[key]}: unknown gain of law {name} "
                f"(known: {', '.join(known)})"
            )
    try:
        return TypeAdapter(gains_type).validate_python(dict(given))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"][0].lower() + fault["msg"][1:]
        raise ConfigError(f"control.gains.{key} = {fault['input']}: {message}") from error

"""Control laws by their names in roma.yaml (`roma.config.names`), with their wrappers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from controllers.base import Law
from controllers.shaping import bounded, dead_band, holding, slew_limited
from roma.config import names
from roma.domain.errors import ConfigError

LAWS: dict[str, tuple[type[Any], Any]] = {
    name: (gains, step)
    for name, (gains, step) in ((name, names.load(path)) for name, path in names.LAWS.items())
}
"""Gains and step function by name."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Wrappers around a law: `dead_band` in cores, `max_fall` in cores per second (0: none)."""

    dead_band: float = 0.0
    max_fall: float = 0.0


def build(name: str, gains: Mapping[str, float | str], shape: Shape | None = None) -> Law:
    """Return the named law with its gains and wrappers; raise `ConfigError` naming a bad gain."""
    if name not in LAWS:
        raise ConfigError(f"control.law = {name}: must be one of {', '.join(LAWS)}")
    gains_type, step = LAWS[name]
    shape = shape or Shape()
    law: Law = partial(step, _gains(name, gains_type, gains))
    if shape.max_fall:
        law = slew_limited(law, shape.max_fall)
    if shape.dead_band:
        law = dead_band(law, shape.dead_band)
    return holding(bounded(law))


def _gains(name: str, gains_type: type[Any], given: Mapping[str, float | str]) -> Any:
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

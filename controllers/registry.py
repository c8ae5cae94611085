"""The registry of control laws: each name in roma.yaml and its law, written out in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError

from controllers.base import Law
from controllers.captain import CaptainGains, captain_step
from controllers.late_share import LateShareGains, late_share_step
from controllers.paper import PaperGains, paper_step
from controllers.pi import PiGains, pi_step
from controllers.rules import RulesGains, rules_step
from controllers.shaping import bounded, dead_band, holding, slew_limited
from controllers.static import StaticGains, static_step
from controllers.usage import UsageGains, usage_step
from roma.domain.errors import ConfigError

LAWS: dict[str, tuple[type[Any], Any]] = {
    "captain": (CaptainGains, captain_step),
    "late_share": (LateShareGains, late_share_step),
    "paper": (PaperGains, paper_step),
    "pi": (PiGains, pi_step),
    "rules": (RulesGains, rules_step),
    "static": (StaticGains, static_step),
    "usage": (UsageGains, usage_step),
}


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

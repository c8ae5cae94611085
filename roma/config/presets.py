"""Presets: named sets of defaults, each selecting a system of the literature by one key.

A preset fills in the keys that a file leaves out; a key in the file takes precedence.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

Preset = Literal["paper"]
"""`paper`: the policies, law, gains, period and promise of the ROMA paper."""

_SECTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "scheduling": {"gpu": "roma", "cpu": "round_robin", "spill": 0.0},
    "control": {
        "law": "paper",
        "gains": {"K": 0.15, "a": 0.11},  # as printed in §5; the law's defaults are their code's
        "period": 1.0,
        "sharing": "proportional",
        "cfs_burst": 0.0,
    },
}

_SLA: Final[Mapping[str, Any]] = {"statistic": "mean"}


def filled(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a file's data with the keys that it leaves out filled in from its preset.

    Data that does not have the form of a section is returned unchanged, for validation to refuse.
    """
    if data.get("preset") != "paper":
        return data
    found = dict(data)
    for key, preset in _SECTIONS.items():
        own = data.get(key, {})
        if isinstance(own, dict):
            found[key] = _section(own, preset)
    models = data.get("models")
    if isinstance(models, dict):
        found["models"] = {name: _model(model) for name, model in models.items()}
    return found


def _section(own: Mapping[str, Any], preset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a section merged with its preset; the preset's gains apply only with its law."""
    chosen = {key: value for key, value in own.items() if value is not None}
    rest = dict(preset)
    if chosen.get("law", rest.get("law")) != rest.get("law") or "gains_file" in chosen:
        rest.pop("gains", None)
    return {**own, **rest, **chosen}


def _model(model: Any) -> Any:
    if not isinstance(model, dict) or not isinstance(sla := model.get("sla"), dict):
        return model
    if any(sla.get(key) is not None for key in ("budget", "statistic")):
        return model
    return {**model, "sla": {**sla, **_SLA}}

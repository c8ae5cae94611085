"""Renamed keys and values of roma.yaml: each is refused with one line that gives the new name."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

KEYS: Final = {
    ("gateway", "workers"): "gateway.processes",
    ("gateway", "worker_port"): "gateway.process_port",
    ("control", "story"): "control.decision_log",
}
"""New key by section and old key."""

VALUES: Final = {("scheduling", "gpu", "advantage"): "gpu_savings_first"}
"""New value by section, key and old value."""

EXPERIMENTS: Final = {"hindsight": "clairvoyant-bound"}
"""New name of an experiment by its old one."""


def faults(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each old name in the data of a file."""
    for (section, key), new in KEYS.items():
        if key in _section(data, section):
            yield f"{section}.{key}: is called {new} since 0.2"
    for (section, key, old), new in VALUES.items():
        if _section(data, section).get(key) == old:
            yield f"{section}.{key} = {old}: is called {new} since 0.2"


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}

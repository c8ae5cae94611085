"""The Grafana dashboard: rows of charts, the last row once per model.

`grafana.json` is what Grafana's "Export as JSON" writes: edit it there, and put it here.
"""

import json
from importlib import resources
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "roma"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    text = resources.files("roma.deploy").joinpath("grafana.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found

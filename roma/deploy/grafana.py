"""The Grafana dashboard: rows of charts, the last row once per model.

`grafana.json` is what Grafana's "Export as JSON" writes: edit it there, and put it here.
"""

import json
import re
from importlib import resources
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "roma"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    text = resources.files("roma.deploy").joinpath("grafana.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def queries(model: str) -> list[str]:
    """Return every query of the dashboard, as Grafana asks it for one model in all namespaces.

    A variable that may have several values is escaped as a regular expression in PromQL's quotes,
    also where it has one.
    """
    value = re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", model)
    # Without Kubernetes nothing has a namespace, which .* matches.
    return [
        target["expr"].replace("$model", value).replace("$namespace", ".*")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]

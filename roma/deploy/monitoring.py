"""Configuration of Prometheus and Grafana for a Compose deployment: targets, rules, dashboard."""

import json
from collections.abc import Mapping
from typing import Any

from roma.deploy.alerts import rules
from roma.deploy.grafana import DATASOURCE, dashboard

PROMETHEUS, ALERTS, GRAFANA = "prometheus.yaml", "alerts.yaml", "grafana"

SCRAPE_INTERVAL = "5s"

_PROVISIONED: dict[str, dict[str, Any]] = {
    "datasources/roma.yaml": {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "ROMA",
                "uid": DATASOURCE["uid"],
                "type": DATASOURCE["type"],
                "access": "proxy",
                "url": "http://prometheus:9090",
                "isDefault": True,
            }
        ],
    },
    "dashboards/roma.yaml": {
        "apiVersion": 1,
        "providers": [
            {
                "name": "ROMA",
                "type": "file",
                "allowUiUpdates": False,
                "options": {"path": "/etc/grafana/provisioning/dashboards"},
            }
        ],
    },
}


def files(targets: Mapping[str, str], credentials: str | None = None) -> dict[str, str]:
    """Return Prometheus' and Grafana's files by name; `targets` are host:port by job.

    `credentials` is the path, inside Prometheus' container, of the file with its token.
    """
    shown = {} if credentials is None else {"authorization": {"credentials_file": credentials}}
    scraped = {
        "global": {"scrape_interval": SCRAPE_INTERVAL},
        "rule_files": [ALERTS],
        "scrape_configs": [
            {"job_name": job, **shown, "static_configs": [{"targets": [target]}]}
            for job, target in targets.items()
        ],
    }
    # JSON is valid YAML; nobody edits these files.
    found = {PROMETHEUS: _json(scraped), ALERTS: _json(rules())}
    found |= {f"{GRAFANA}/{name}": _json(content) for name, content in _PROVISIONED.items()}
    return found | {f"{GRAFANA}/dashboards/roma.json": _json(dashboard())}


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"

"""Metrics, alerts and dashboard for a cluster with Prometheus' operator and Grafana.

The operator's kinds (monitoring.coreos.com/v1) need its CRDs, so nothing of this is applied unless
asked for.
"""

import json
from typing import Any, Final

from roma.config.schema import Config
from roma.deploy import alerts, grafana
from roma.deploy.kubernetes import common
from roma.deploy.kubernetes.common import Manifest

_GROUP: Final = "monitoring.coreos.com/v1"

_ENDPOINTS: Final = (("admin", "dispatcher"), ("control", "supervisor"))
"""Named ports with /metrics, and the `job` that the alerts know them by."""

REFERENCES: Final[Manifest] = {
    "nameReference": [
        {
            "kind": "Secret",
            "version": "v1",
            "fieldSpecs": [
                {
                    "kind": "PodMonitor",
                    "path": "spec/podMetricsEndpoints/authorization/credentials/name",
                }
            ],
        }
    ]
}
"""For kustomize, which gives a generated Secret another name with each change."""


def objects(config: Config) -> list[Manifest]:
    """Return a PodMonitor, the alerts, and the dashboard as Grafana's sidecar finds it."""
    name, found = common.slug(config.name), common.labels(config, "monitoring")
    credentials = {"name": f"{name}-metrics", "key": "token"}
    endpoints = [
        {
            "port": port,
            "path": "/metrics",
            "interval": "5s",
            "authorization": {"credentials": credentials},
            "relabelings": [{"targetLabel": "job", "replacement": job}],
        }
        for port, job in _ENDPOINTS
    ]
    instance = {"app.kubernetes.io/name": "roma", "app.kubernetes.io/instance": name}
    spec = {"selector": {"matchLabels": instance}, "podMetricsEndpoints": endpoints}
    board = json.dumps(_dashboard(), indent=1) + "\n"
    return [
        common.manifest("PodMonitor", _GROUP, name, found, spec=spec),
        common.manifest("PrometheusRule", _GROUP, name, found, spec=alerts.rules()),
        common.manifest(
            "ConfigMap",
            "v1",
            f"{name}-dashboard",
            found | {"grafana_dashboard": "1"},
            data={"roma.json": board},
        ),
    ]


def _dashboard() -> dict[str, Any]:
    """Return the dashboard for a Grafana of others, whose data source the reader chooses."""
    found: dict[str, Any] = _with_datasource(grafana.dashboard())
    chosen = {"name": "datasource", "label": "Prometheus", "type": "datasource"}
    found["templating"]["list"].insert(0, {**chosen, "query": "prometheus"})
    return found


def _with_datasource(part: Any) -> Any:
    if part == grafana.DATASOURCE:
        return {**grafana.DATASOURCE, "uid": "${datasource}"}
    if isinstance(part, dict):
        return {key: _with_datasource(value) for key, value in part.items()}
    return [_with_datasource(value) for value in part] if isinstance(part, list) else part

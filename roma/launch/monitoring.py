"""Prometheus and Grafana beside a Compose deployment: what to scrape, and one dashboard."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROMETHEUS, GRAFANA = "prometheus.yaml", "grafana"

SCRAPE_INTERVAL = "5s"
DATASOURCE = {"type": "prometheus", "uid": "roma"}

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


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: `queries` are (PromQL, legend)."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]


PANELS = (
    Panel(
        "Response time against its SLA",
        "s",
        (("roma_response_time_seconds", "{{model}}"), ("roma_sla_seconds", "SLA of {{model}}")),
    ),
    Panel(
        "Late, rejected and failed requests, share",
        "percentunit",
        (
            (
                "(sum by (model) (rate(roma_late_answers_total[1m]))"
                ' + sum by (model) (rate(roma_requests_total{outcome=~"rejected|failed"}[1m])))'
                " / sum by (model) (rate(roma_requests_total[1m]))",
                "{{model}}",
            ),
        ),
    ),
    Panel(
        "Requests",
        "reqps",
        (("sum by (model, outcome) (rate(roma_requests_total[1m]))", "{{model}} {{outcome}}"),),
    ),
    Panel(
        "Answered by GPUs, share",
        "percentunit",
        (
            (
                'sum by (model) (rate(roma_requests_total{outcome="answered",device="gpu"}[1m]))'
                ' / sum by (model) (rate(roma_requests_total{outcome="answered"}[1m]))',
                "{{model}}",
            ),
        ),
    ),
    Panel(
        "Cores: demanded, applied, used",
        "short",
        (
            ("roma_cores_demanded", "{{executable}} demanded"),
            ("roma_cores_applied", "{{executable}} applied"),
            ("roma_cores_used", "{{executable}} used"),
        ),
    ),
    Panel(
        "Cores of the worker",
        "short",
        (
            ("sum(roma_cores_applied)", "applied"),
            ("sum(roma_cores_used)", "used"),
            ("sum(roma_worker_cores)", "to share out"),
        ),
    ),
    Panel(
        "Waiting requests",
        "short",
        (("roma_queue_length", "{{model}}"),),
    ),
    Panel(
        "Quota periods throttled, share",
        "percentunit",
        (("roma_throttled_ratio", "{{executable}}"),),
    ),
    Panel(
        "Control: ticks per second, jitter, failures",
        "short",
        (
            ("rate(roma_ticks_total[1m])", "ticks per second"),
            ("roma_tick_jitter_seconds", "jitter (s, p99)"),
            ("sum(rate(roma_actuation_failures_total[1m]))", "failed quotas per second"),
        ),
    ),
    Panel("GPU busy, share", "percentunit", (("roma_gpu_busy_ratio", "GPU {{gpu}}"),)),
)


def files(targets: Mapping[str, str]) -> dict[str, str]:
    """Return Prometheus' and Grafana's files by name; `targets` are host:port by job."""
    scraped = {
        "global": {"scrape_interval": SCRAPE_INTERVAL},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]}
            for job, target in targets.items()
        ],
    }
    # JSON is YAML, and what nobody edits needs no other form.
    found = {PROMETHEUS: _json(scraped)}
    found |= {f"{GRAFANA}/{name}": _json(content) for name, content in _PROVISIONED.items()}
    return found | {f"{GRAFANA}/dashboards/roma.json": _json(dashboard())}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model: two charts in a row."""
    return {
        "uid": "roma",
        "title": "ROMA",
        "schemaVersion": 39,
        "refresh": SCRAPE_INTERVAL,
        "time": {"from": "now-15m", "to": "now"},
        "panels": [_panel(i, panel) for i, panel in enumerate(PANELS)],
    }


def _panel(i: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": i + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": ref, "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for ref, (query, legend) in zip("ABC", panel.queries, strict=False)
        ],
    }


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"

"""The Grafana dashboard, in Grafana's JSON model: rows of charts, the last row once per model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roma.deploy import alerts

REFRESH = "5s"
DATASOURCE = {"type": "prometheus", "uid": "roma"}

WIDTH, HEIGHT = 12, 8
"""Width and height of a chart; Grafana's grid is 24 wide."""

Queries = Sequence[tuple[str, str]]
"""Pairs of PromQL query and legend."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart."""

    title: str
    unit: str
    queries: Queries
    kind: str = "timeseries"
    signed: bool = False


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Charts under one heading; `each` repeats them for every value of a variable."""

    title: str
    panels: Sequence[Panel]
    each: str | None = None


def _quantile(q: float, histogram: str, by: str = "", where: str = "") -> str:
    labels = ", ".join(["le", by]) if by else "le"
    rate = f"rate(roma_{histogram}_bucket{where}[1m])"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({rate}))"


def _quantiles(histogram: str, where: str = "") -> Queries:
    return [(_quantile(q, histogram, where=where), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)]


_HERE = '{model="$model"}'

ROWS = (
    PanelRow(
        "Promises",
        (
            Panel(
                "Response time against its SLA",
                "s",
                (
                    ("roma_response_time_seconds", "{{model}}"),
                    ("roma_sla_seconds", "SLA of {{model}}"),
                ),
            ),
            Panel(
                "Late, rejected and failed requests, share",
                "percentunit",
                ((alerts.violations("1m"), "{{model}}"),),
            ),
            Panel(
                "Burn rate: 1 uses up the budget of late requests",
                "short",
                [
                    (f"{alerts.recorded(w)} / on (model) {alerts.BUDGET}", f"{{{{model}}}} {w}")
                    for w in ("5m", "1h", "6h", "3d")
                ],
            ),
            Panel("Waiting requests", "short", (("roma_queue_length", "{{model}}"),)),
        ),
    ),
    PanelRow(
        "Requests",
        (
            Panel(
                "Requests",
                "reqps",
                (
                    (
                        "sum by (model, outcome) (rate(roma_requests_total[1m]))",
                        "{{model}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Answered by GPUs, share",
                "percentunit",
                (
                    (
                        "sum by (model) (rate(roma_requests_total"
                        '{outcome="answered",device="gpu"}[1m]))'
                        ' / sum by (model) (rate(roma_requests_total{outcome="answered"}[1m]))',
                        "{{model}}",
                    ),
                ),
            ),
        ),
    ),
    PanelRow(
        "Cores",
        (
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
                "Terms of the control law, cores",
                "short",
                (("roma_controller_term_cores", "{{executable}} {{term}}"),),
                signed=True,
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
                "Core-seconds per answer",
                "s",
                [
                    (
                        f"sum(rate(roma_{metric}_total[1m]))"
                        ' / sum(rate(roma_requests_total{outcome="answered"}[1m]))',
                        legend,
                    )
                    for metric, legend in (
                        ("applied_core_seconds", "applied"),
                        ("cpu_seconds", "used"),
                    )
                ],
            ),
            Panel(
                "Quota periods throttled, share",
                "percentunit",
                (
                    (
                        "rate(roma_throttled_periods_total[1m])"
                        " / rate(roma_quota_periods_total[1m])",
                        "{{executable}}",
                    ),
                ),
            ),
            Panel(
                "Demand that is met, share",
                "percentunit",
                # Without a demand the ratio is infinite, which no axis can show.
                (("clamp_max(roma_worker_demand_met_ratio, 1)", "{{worker}}"),),
            ),
        ),
    ),
    PanelRow(
        "Control and devices",
        (
            Panel(
                "Control: how late ticks begin, how long quotas take",
                "s",
                (
                    (_quantile(0.99, "tick_jitter_seconds"), "ticks late, p99"),
                    (_quantile(0.5, "actuation_duration_seconds"), "actuation, p50"),
                    (_quantile(0.99, "actuation_duration_seconds"), "actuation, p99"),
                ),
            ),
            Panel(
                "Control: ticks and quotas per second",
                "short",
                (
                    ("rate(roma_ticks_total[1m])", "ticks"),
                    ("sum(rate(roma_quota_changes_total[1m]))", "quotas changed"),
                    ("sum(rate(roma_actuation_failures_total[1m]))", "quotas failed"),
                ),
            ),
            Panel(
                "Busy, share of time",
                "percentunit",
                (
                    ("rate(roma_executable_busy_seconds_total[1m])", "{{executable}}"),
                    ("roma_gpu_busy_ratio", "GPU {{gpu}} (NVML)"),
                ),
            ),
            Panel(
                "Executables that started or were lost, last 15 minutes",
                "short",
                (
                    ("increase(roma_executable_starts_total[15m])", "{{executable}} started"),
                    ("increase(roma_executable_losses_total[15m])", "{{executable}} lost"),
                ),
            ),
        ),
    ),
    PanelRow(
        "Model $model",
        (
            Panel(
                "Response time of $model, percentiles",
                "s",
                (
                    *_quantiles("request_duration_seconds", _HERE),
                    (f"roma_sla_seconds{_HERE}", "SLA"),
                ),
            ),
            Panel(
                "Where the time of $model goes, p95 by device",
                "s",
                [
                    (_quantile(0.95, f"{part}_duration_seconds", "device", _HERE), legend)
                    for part, legend in (
                        ("queue", "waits for {{device}}"),
                        ("execution", "runs on {{device}}"),
                    )
                ],
            ),
            Panel(
                "Response times of $model",
                "s",
                (
                    (
                        f"sum by (le) (increase(roma_request_duration_seconds_bucket{_HERE}[1m]))",
                        "{{le}}",
                    ),
                ),
                kind="heatmap",
            ),
        ),
        each="model",
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard: two charts side by side under each heading."""
    return {
        "uid": "roma",
        "title": "ROMA",
        "schemaVersion": 39,
        "refresh": REFRESH,
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [_models()]},
        "panels": [{"id": i, **panel} for i, panel in enumerate(_laid_out(ROWS), start=1)],
    }


def queries(model: str) -> list[str]:
    """Return every query of the dashboard, as Grafana asks it for one model."""
    return [
        expr.replace("$model", model)
        for row in ROWS
        for panel in row.panels
        for expr, _ in panel.queries
    ]


def _models() -> dict[str, Any]:
    query = "label_values(roma_sla_seconds, model)"
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "models"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _laid_out(rows: Iterable[PanelRow]) -> Iterator[dict[str, Any]]:
    y = 0
    for row in rows:
        repeat = {} if row.each is None else {"repeat": row.each}
        place = {"x": 0, "y": y, "w": 2 * WIDTH, "h": 1}
        yield {
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
            **repeat,
        }
        y += 1
        for i, panel in enumerate(row.panels):
            place = {
                "x": WIDTH * (i % 2),
                "y": y + HEIGHT * (i // 2),
                "w": WIDTH,
                "h": HEIGHT,
            }
            yield _panel(panel, place)
        y += HEIGHT * ((len(row.panels) + 1) // 2)


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": place,
    }
    described["targets"] = [
        {
            "refId": chr(ord("A") + i),
            "datasource": DATASOURCE,
            "expr": query,
            "legendFormat": legend,
            **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
        }
        for i, (query, legend) in enumerate(panel.queries)
    ]
    if panel.kind == "heatmap":
        described["options"] = {"calculate": False, "yAxis": {"unit": panel.unit}}
    else:
        floor = {} if panel.signed else {"min": 0}
        described["fieldConfig"] = {"defaults": {"unit": panel.unit, **floor}, "overrides": []}
    return described

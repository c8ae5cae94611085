"""Prometheus recording and alerting rules: SLO burn rates, and failures of ROMA's programs.

The rules follow chapter 5 of Google's "The Site Reliability Workbook": several windows, each with
its burn rate. The long window shows that the burn is significant, the short one that it continues.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MODEL = "(namespace, model)"
"""Labels of a model; a namespace is a cluster's, and elsewhere there is none."""

BUDGET = f"max by {MODEL} (roma_sla_budget_ratio)"
"""The share of requests that may be late, by model; promises on a mean have no budget."""

MAX_THRESHOLD = 0.9
"""More than this share of late requests always fires: a burn rate times a wide budget exceeds 1."""

WINDOWS = ("5m", "30m", "1h", "6h", "3d")


@dataclass(frozen=True, slots=True)
class Burn:
    """A burn rate that is too high in a long and in a short window (the Workbook's table 5-8)."""

    long: str
    short: str
    rate: float
    severity: str


BURNS = (
    Burn("1h", "5m", 14.4, "page"),  # 2 % of a month's budget in an hour
    Burn("6h", "30m", 6, "page"),  # 5 % of it in six hours
    Burn("3d", "6h", 1, "ticket"),  # 10 % of it in three days
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A query that always has data, and the comparison, against `value`, that makes it bad."""

    value: str
    bad: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires once all `conditions` have held for `hold`; its text says what to do."""

    name: str
    conditions: Sequence[Condition]
    hold: str
    severity: str
    summary: str
    description: str
    window: str = ""


def recorded(window: str) -> str:
    """Return the name under which a window's share of violations is recorded."""
    return f"model:roma_violations:ratio_rate{window}"


def violations(window: str) -> str:
    """Return the query for the share of requests, by model, that broke the promise."""
    return (
        f"sum by {MODEL} (rate(roma_sla_late_requests_total[{window}]))"
        f" / sum by {MODEL} (rate(roma_sla_requests_total[{window}]))"
    )


def _up(job: str) -> Condition:
    """Return the condition that a program of a job does not answer, or that no target is left.

    A pod that is gone leaves no `up` of 0 behind.
    """
    up = f'up{{job="{job}"}}'
    return Condition(f"({up} or 0 * absent({up}))", "== 0")


def _burning(burn: Burn) -> Alert:
    bad = f"> on {MODEL} clamp_max({burn.rate:g} * {BUDGET}, {MAX_THRESHOLD})"
    return Alert(
        "RomaPromiseBurns",
        [Condition(recorded(w), bad) for w in (burn.long, burn.short)],
        "0s",
        burn.severity,
        "Model {{ $labels.model }} breaks its promise too often",
        f"Late, rejected or failed in the last {burn.long}: {{{{ $value | humanizePercentage }}}} "
        "of its requests; its budget is in roma_sla_budget_ratio. Failed: see the executable's log "
        "and restarts. Late or rejected while demands are cut (roma_worker_demand_met_ratio < 1): "
        "give the worker cores, or move a model. While they are not cut: cpu.max bounds the model, "
        "or its promise is shorter than one request takes (roma_execution_duration_seconds).",
        burn.long,
    )


ALERTS = (
    *map(_burning, BURNS),
    Alert(
        "RomaControlStalled",
        # Ticks completed, as a share of the ticks that were due.
        [Condition("rate(roma_ticks_total[2m]) * roma_control_period_seconds", "< 0.5")],
        "1m",
        "page",
        "The supervisor of worker {{ $labels.worker }} hardly ticks",
        "It did {{ $value | humanizePercentage }} of its control periods: cores do not follow the "
        "load. See its log and roma_actuation_duration_seconds: an engine or a dispatcher that "
        "hangs delays a tick. Restarting the supervisor is safe: it reads everything back.",
    ),
    Alert(
        "RomaDispatcherDown",
        [_up("dispatcher")],
        "1m",
        "page",
        "{{ with $labels.instance }}The dispatcher {{ . }} does not answer"
        "{{ else }}There is no dispatcher to ask{{ end }}",
        "No request is served through it, and supervisors hold all cores where they are. See its "
        "log, and start it again: it keeps nothing that could be lost.",
    ),
    Alert(
        "RomaSupervisorDown",
        [_up("supervisor")],
        "1m",
        "page",
        "{{ with $labels.instance }}The supervisor {{ . }} does not answer"
        "{{ else }}There is no supervisor to ask{{ end }}",
        "Requests are served with the cores applied last, or with safe shares once its lease ran "
        "out; nothing follows the load. See its log, and start it again: it reads everything back.",
    ),
    Alert(
        "RomaNotControlling",
        [
            Condition("max by (namespace, worker) (roma_controllable_executables)", "> 0"),
            Condition("max by (namespace, worker) (roma_controlled_executables)", "== 0"),
        ],
        "5m",
        "page",
        "Nothing controls the cores of worker {{ $labels.worker }}",
        "Its requests are served, but none of its executables has its cores set: they do not "
        "follow the load, and promises are kept by chance. The live page and roma status say why: "
        "no right to write cgroups (observe-only), cgroups that cannot be read, or a supervisor "
        "that does not answer. If that is meant, say so: control.dry_run.",
    ),
    Alert(
        "RomaActuationFails",
        [Condition("increase(roma_actuation_failures_total[2m])", "> 0")],
        "5m",
        "ticket",
        "The cores of {{ $labels.executable }} cannot be set",
        "For five minutes its quota could not be written, so it keeps the cores it has. See the "
        "supervisor's log: is the engine or broker away, the container gone, the permission lost?",
    ),
    Alert(
        "RomaWorkerSaturated",
        [Condition("quantile_over_time(0.9, roma_worker_demand_met_ratio[10m])", "< 1")],
        "5m",
        "ticket",
        "Worker {{ $labels.worker }} has too few cores",
        "Demands have been cut for a quarter of an hour, most of the time to "
        "{{ $value | humanizePercentage }} or less. Add cores or a worker, move a model to another "
        "one, or relax a promise. If others use its host (roma_host_others_cores, "
        "roma_host_stolen_cores; roma status says so), demands grow without need: move those "
        "others instead.",
    ),
    Alert(
        "RomaExecutableRestarts",
        # Rounded: Prometheus extrapolates three starts to slightly more than three.
        [Condition("round(increase(roma_executable_starts_total[30m]))", "> 3")],
        "0s",
        "ticket",
        "Executable {{ $labels.executable }} starts again and again",
        "It became ready {{ $value | humanize }} times in half an hour; what it was running failed "
        "each time. See its own log and its memory limit (models.X.memory): out of memory is the "
        "usual reason.",
    ),
)


DEMAND: Final = "model:roma_demand:ratio"
"""Name under which the demand of each model is recorded, as a share of the cores that its replicas
could have: what an autoscaler of replicas should follow."""


def rules() -> dict[str, Any]:
    """Return Prometheus' rule file as plain data."""
    by = f"sum by {MODEL}"
    demand = f"{by} (roma_cores_demanded) / {by} (roma_cores_available)"
    return {
        "groups": [
            {
                "name": "roma-demand",
                "interval": "15s",
                "rules": [{"record": DEMAND, "expr": demand}],
            },
            {
                "name": "roma-promises",
                "interval": "30s",
                "rules": [{"record": recorded(w), "expr": violations(w)} for w in WINDOWS],
            },
            {"name": "roma-alerts", "interval": "15s", "rules": [_rule(a) for a in ALERTS]},
        ]
    }


def _rule(alert: Alert) -> dict[str, Any]:
    window = {"window": alert.window} if alert.window else {}
    return {
        "alert": alert.name,
        "expr": " and ".join(f"{c.value} {c.bad}" for c in alert.conditions),
        "for": alert.hold,
        "labels": {"severity": alert.severity, **window},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }

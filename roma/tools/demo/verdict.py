"""The demo's verdict: counts that must add up, promises, cores, and any failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from rich.table import Table

from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.domain import units
from roma.tools.load import LoadReport

ACCURACY_BOUND = 0.97


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one run. Cores come from the kernel (`used` in core-seconds by model).

    Without the right to set quotas the kernel is not asked: `used` and `changes` are empty, and
    `core_seconds` is 0.

    `correct` of `checked` digits were recognised.

    `config`, `profiles` and `arrivals` (send times by model) describe the run, so that the
    experiment `parity` can simulate it exactly.
    """

    law: str
    report: LoadReport
    seconds: float
    allocatable: float
    core_seconds: float
    used: Mapping[str, float]
    changes: Mapping[str, int]
    checked: int
    correct: int
    steal: float
    config: Config
    profiles: Mapping[str, ModelProfile]
    arrivals: Mapping[str, Sequence[float]]

    @property
    def is_measured(self) -> bool:
        """True if the cores were measured, since quotas could be set."""
        return bool(self.changes)

    @property
    def used_seconds(self) -> float:
        """Core-seconds that the models used, by the kernel's accounting."""
        return sum(self.used.values())

    @property
    def accuracy(self) -> float | None:
        """Share of answered digits that were recognised."""
        return self.correct / self.checked if self.checked else None

    @property
    def static_max(self) -> float:
        """Core-seconds of granting every allocatable core for the whole run."""
        return self.allocatable * self.seconds

    @property
    def saved(self) -> float:
        """Share of the static-max core-seconds that were not needed."""
        return 1 - self.core_seconds / self.static_max


def failures(evidence: Evidence) -> list[str]:
    """Return the expectations that the run did not meet; an empty list is success."""
    total, accuracy = evidence.report.total, evidence.accuracy
    found = []
    if total.lost:
        found.append(f"{total.lost} requests were lost")
    if total.failed or total.invalid:
        found.append(f"{total.failed} requests failed and {total.invalid} were invalid")
    if not total.answered:
        found.append("no request was answered")
    budgets = {spec.name: spec.sla.budget for spec in evidence.config.model_specs}
    for model in evidence.report.models:
        broken, budget = model.broken_share or 0.0, budgets[model.model]
        if budget is not None and broken > budget:
            found.append(
                f"{model.model}: {broken:.1%} were late, rejected or failed (budget {budget:.0%})"
            )
    if not evidence.is_measured:
        found.append("no quota was set: this process may not set CPU quotas, it only observed")
    elif not all(evidence.changes.values()):
        found.append("no quota was really changed: the kernel reads back the same cores")
    if accuracy is None or accuracy < ACCURACY_BOUND:
        shown = "unknown" if accuracy is None else f"{accuracy:.3f}"
        found.append(f"digits accuracy through the gateway is {shown} (bound {ACCURACY_BOUND})")
    return found


def summary(evidence: Evidence) -> Table:
    """Return the facts of one run, beside the table of the load generator."""
    total, lag = evidence.report.total, evidence.report.total.send_lag
    balance = f"{total.answered} + {total.rejected} + {total.failed + total.invalid}"
    changes = ", ".join(f"{model} {n}" for model, n in evidence.changes.items())
    noise = "-" if lag is None else f"{units.milliseconds(lag.percentiles['p99']):.1f} ms"
    rows = {
        "sent = answered + rejected + failed": f"{total.sent} = {balance}",
        "lost": str(total.lost),
        "late, rejected or failed": f"{total.broken_share or 0:.2%}",
        "core-seconds allocated": _allocated(evidence),
        "core-seconds used": f"{evidence.used_seconds:.1f}" if evidence.is_measured else "-",
        "core-seconds of static-max": f"{evidence.static_max:.1f}",
        "saved against static-max": _saved(evidence),
        "live quota changes (kernel)": changes or "none",
        "digits recognised": f"{evidence.correct} of {evidence.checked}",
        "noise: generator lag p99, CPU steal": f"{noise}, {evidence.steal:.1%}",
    }
    table = Table(title=f"law {evidence.law}", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for row in rows.items():
        table.add_row(*row)
    return table


def plain(evidence: Evidence) -> dict[str, Any]:
    """Return the facts of one run for JSON: seconds, cores and shares; null is not measured."""
    is_measured = evidence.is_measured
    return {
        "law": evidence.law,
        "seconds": evidence.seconds,
        "core_seconds": evidence.core_seconds if is_measured else None,
        "used_seconds": evidence.used_seconds if is_measured else None,
        "static_max": evidence.static_max,
        "saved": evidence.saved if is_measured else None,
        "changes": dict(evidence.changes),
        "checked": evidence.checked,
        "correct": evidence.correct,
        "steal": evidence.steal,
        "failures": failures(evidence),
        "load": orjson.loads(evidence.report.to_json()),
    }


def comparison(runs: list[Evidence]) -> Table:
    """Return the runs side by side."""
    table = Table(title="the same load under each law")
    table.add_column("")
    for run in runs:
        table.add_column(run.law, justify="right")
    rows: dict[str, Callable[[Evidence], str]] = {
        "core-seconds": _allocated,
        "late, rejected or failed": lambda r: f"{r.report.total.broken_share or 0:.2%}",
        "rejected": lambda r: str(r.report.total.rejected),
        "saved against static-max": _saved,
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(run) for run in runs))
    return table


def _allocated(evidence: Evidence) -> str:
    return f"{evidence.core_seconds:.1f}" if evidence.is_measured else "-"


def _saved(evidence: Evidence) -> str:
    return f"{evidence.saved:.0%}" if evidence.is_measured else "-"

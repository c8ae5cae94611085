"""Report of a run: exact percentiles of recorded samples, and counts that must add up.

Percentiles are nearest-rank: every number shown is a response time that some request had. Only
answered requests have a response time, so a failed one never counts as fast.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import orjson
from rich.table import Table
from rich.text import Text

from roma.domain.units import milliseconds
from roma.tools.load.outcomes import RequestEnd, RequestResult

SHARES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Samples in seconds, summarised; `percentiles` has the keys of SHARES."""

    count: int
    mean: float
    max: float
    percentiles: Mapping[str, float]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self | None:
        """Return the summary of the samples, None if there are none."""
        if not samples:
            return None
        values = np.asarray(samples, dtype=np.float64)
        ranks = np.quantile(values, list(SHARES.values()), method="inverted_cdf")
        named = dict(zip(SHARES, map(float, ranks), strict=True))
        return cls(len(values), float(values.mean()), float(values.max()), named)

    def as_dict(self) -> dict[str, float]:
        """Return count, mean, percentiles and max; seconds."""
        return {"count": self.count, "mean": self.mean, **self.percentiles, "max": self.max}


MAX_LAG = 0.02
"""Seconds that 1 % of the requests may leave late without a warning."""


class Recorder:
    """Collects the results of one model; the sender counts `sent` separately."""

    __slots__ = ("lags", "late", "model", "outcomes", "reasons", "sent", "sla", "statuses", "times")

    def __init__(self, model: str, sla: float | None) -> None:
        self.model = model
        self.sla = sla
        self.sent = 0
        self.late = 0
        self.outcomes: Counter[RequestEnd] = Counter()
        self.statuses: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        # Arrays of doubles: a million requests take 16 MB, a list of floats four times as much.
        self.times = array("d")
        self.lags = array("d")

    def record(self, result: RequestResult) -> None:
        """Count one result."""
        self.outcomes[result.outcome] += 1
        if result.status is not None:
            self.statuses[result.status] += 1
        if result.reason is not None:
            self.reasons[result.reason] += 1
        if result.lag is not None:
            self.lags.append(result.lag)
        if result.outcome is RequestEnd.ANSWERED:
            self.times.append(result.response_time)
            self.late += self.sla is not None and result.response_time > self.sla


@dataclass(frozen=True, slots=True)
class ModelOutcomes:
    """Outcomes of the requests of one model, or of all models together.

    `statuses` counts the requests that had an HTTP answer, `reasons` those that had none.
    `promised` counts the answered requests of models with an SLA, `late` those among them that took
    longer than it, `unanswered` the requests of such models that were rejected or failed.
    """

    model: str
    sla: float | None
    elapsed: float
    sent: int
    answered: int
    rejected: int
    invalid: int
    failed: int
    promised: int
    late: int
    unanswered: int
    statuses: Mapping[int, int]
    reasons: Mapping[str, int]
    response_time: Distribution | None
    send_lag: Distribution | None

    @property
    def lost(self) -> int:
        """Requests without an outcome: 0, or the generator is broken."""
        return self.sent - self.answered - self.rejected - self.invalid - self.failed

    @property
    def late_share(self) -> float | None:
        """The share of answered requests that took longer than their SLA; None without either."""
        return self.late / self.promised if self.promised else None

    @property
    def broken_share(self) -> float | None:
        """The share of requests that were late, rejected or failed; None without an SLA.

        Requests with a refused input do not count. For several models, only those with an SLA
        count.
        """
        counted = self.promised + self.unanswered
        return (self.late + self.unanswered) / counted if counted else None

    @property
    def answered_per_s(self) -> float:
        """Answers per second of the run, from its start to its last end."""
        return self.answered / self.elapsed if self.elapsed > 0 else 0.0

    @classmethod
    def of(cls, recorders: Sequence[Recorder], *, model: str, elapsed: float) -> Self:
        """Return the report on these recorders' requests together."""
        outcomes = sum((r.outcomes for r in recorders), Counter[RequestEnd]())
        return cls(
            model=model,
            sla=recorders[0].sla if len(recorders) == 1 else None,
            elapsed=elapsed,
            sent=sum(r.sent for r in recorders),
            answered=outcomes[RequestEnd.ANSWERED],
            rejected=outcomes[RequestEnd.REJECTED],
            invalid=outcomes[RequestEnd.INVALID],
            failed=outcomes[RequestEnd.FAILED],
            promised=sum(r.outcomes[RequestEnd.ANSWERED] for r in recorders if r.sla is not None),
            late=sum(r.late for r in recorders),
            unanswered=sum(
                r.outcomes[RequestEnd.REJECTED] + r.outcomes[RequestEnd.FAILED]
                for r in recorders
                if r.sla is not None
            ),
            statuses=dict(sorted(sum((r.statuses for r in recorders), Counter[int]()).items())),
            reasons=dict(sorted(sum((r.reasons for r in recorders), Counter[str]()).items())),
            response_time=Distribution.of([t for r in recorders for t in r.times]),
            send_lag=Distribution.of([lag for r in recorders for lag in r.lags]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON; a name that ends in `_s` is in seconds."""
        return {
            "model": self.model,
            "sla_s": self.sla,
            "sent": self.sent,
            "answered": self.answered,
            "rejected": self.rejected,
            "invalid": self.invalid,
            "failed": self.failed,
            "lost": self.lost,
            "late": self.late,
            "late_share": self.late_share,
            "broken_share": self.broken_share,
            "answered_per_s": self.answered_per_s,
            "statuses": {str(status): number for status, number in self.statuses.items()},
            "reasons": dict(self.reasons),
            "response_time_s": self.response_time and self.response_time.as_dict(),
            "send_lag_s": self.send_lag and self.send_lag.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A run: one report for each model, in the plan's order, and their total.

    `elapsed` is in seconds. `planned` exceeds `total.sent` if the run was stopped early.
    """

    models: tuple[ModelOutcomes, ...]
    total: ModelOutcomes
    elapsed: float
    planned: int

    @classmethod
    def of(cls, recorders: Sequence[Recorder], *, elapsed: float, planned: int) -> Self:
        """Return the report on the recorded results."""
        return cls(
            models=tuple(ModelOutcomes.of([r], model=r.model, elapsed=elapsed) for r in recorders),
            total=ModelOutcomes.of(recorders, model="total", elapsed=elapsed),
            elapsed=elapsed,
            planned=planned,
        )

    @property
    def warning(self) -> str | None:
        """Reason why the response times are doubtful, in words, or None.

        They count from the intended send, so they contain the generator's own delay.
        """
        lag = self.total.send_lag
        if lag is None or lag.percentiles["p99"] <= MAX_LAG:
            return None
        return (
            f"1 % of the requests left {milliseconds(lag.percentiles['p99']):.0f} ms or more after "
            "their time, which their response times contain: this machine cannot send as fast"
        )

    def to_json(self) -> bytes:
        """Return the report as indented JSON."""
        document = {
            "elapsed_s": self.elapsed,
            "planned": self.planned,
            "models": [report.as_dict() for report in self.models],
            "total": self.total.as_dict(),
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2)

    def table(self) -> Table:
        """Return the report for people: one column for each model, times in milliseconds."""
        columns = (*self.models, self.total) if len(self.models) > 1 else self.models
        table = Table(title=f"{self.total.sent} requests in {self.elapsed:.1f} s")
        table.add_column("")
        for report in columns:
            table.add_column(Text(report.model), justify="right")
        for name, cells in zip(_ROWS, zip(*map(_cells, columns), strict=True), strict=True):
            if name.startswith("p50") or name in ("answered/s", "send lag p99 ms"):
                table.add_section()
            table.add_row(name, *cells)
        for key in sorted({key for report in columns for key in _details(report)}):
            table.add_row(f"  {key}", *(str(_details(r).get(key, 0)) for r in columns), style="dim")
        return table


_ROWS = (
    *("sent", "answered", "rejected", "invalid", "failed", "lost"),
    *(f"{name} ms" for name in (*SHARES, "max", "mean")),
    *("answered/s", "SLA ms", "late", "late share", "late, rejected or failed"),
    *("send lag p99 ms", "send lag max ms"),
)


def _cells(report: ModelOutcomes) -> list[str]:
    counts = (report.sent, report.answered, report.rejected, report.invalid, report.failed)
    times, lag = report.response_time, report.send_lag
    spread = [*times.percentiles.values(), times.max, times.mean] if times else [None] * 8
    lags = [lag.percentiles["p99"], lag.max] if lag else [None] * 2
    share = report.late_share
    return [
        *map(str, (*counts, report.lost)),
        *map(_ms, spread),
        f"{report.answered_per_s:.1f}",
        _ms(report.sla),
        "-" if share is None else str(report.late),
        "-" if share is None else f"{share:.2%}",
        "-" if report.broken_share is None else f"{report.broken_share:.2%}",
        *map(_ms, lags),
    ]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{milliseconds(seconds):.2f}"


def _details(report: ModelOutcomes) -> dict[str, int]:
    """Count the outcomes that need an explanation: statuses other than 2xx, and reasons."""
    odd = {f"status {s}": n for s, n in report.statuses.items() if not 200 <= s < 300}
    return odd | dict(report.reasons)

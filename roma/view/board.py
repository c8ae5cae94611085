"""The board: per model, its promise, its load, its cores and what stands in the way; once a second.

It joins what the dispatcher counts with what the supervisors decided. Where a supervisor is silent,
its last word is not shown as if it were news: its numbers are absent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roma.exchange import ExchangeReply
from roma.model import ExecutorSpec, ModelSpec
from roma.view.diagnosis import IDLE_AFTER, LATELY, Case, diagnose
from roma.view.history import LENGTH, History
from roma.view.moments import Moment, Moments
from roma.view.rows import Executable, Row, View, Worker

RECENT = 60
"""Seconds over which the share of broken promises is shown."""


class Board:
    """The latest view of a deployment, and its last 15 minutes."""

    def __init__(self, name: str) -> None:
        self.history = History()
        self.view = View(name, 0.0, [], [])
        self._name = name
        self._moments = Moments()

    def take(
        self,
        reply: ExchangeReply,
        models: Mapping[str, ModelSpec],
        executors: Iterable[ExecutorSpec],
        supervisors: Mapping[str, tuple[Worker, Mapping[str, Any]]],
        *,
        now: float,
        at: float,
    ) -> list[Moment]:
        """Look at everything once; `now` is the dispatcher's clock, `at` the wall clock.

        `supervisors` maps a worker to what is known of it and to what its supervisor says of its
        executables. Returns the moments that came of it.
        """
        moments = self._moments.take(reply, now)
        workers = {name: worker for name, (worker, _) in supervisors.items()}
        found = _executables(reply, executors, supervisors)
        samples = {m.model: _sample(m, found.get(m.model, [])) for m in moments}
        self.history.add(at, samples)
        lately = _Lately(self.history)
        rows = [
            self._row(m, models[m.model], found.get(m.model, []), workers, lately)
            for m in moments
            if m.model in models
        ]
        rows.sort(key=lambda row: (row.state.rank, -(row.error or 0.0), row.model))
        self.view = View(self._name, at, list(workers.values()), rows)
        return moments

    def _row(
        self,
        m: Moment,
        spec: ModelSpec,
        executables: list[Executable],
        workers: Mapping[str, Worker],
        lately: "_Lately",
    ) -> Row:
        sla, model = spec.sla, m.model
        y = max(m.response_time or 0.0, m.oldest_age if m.waiting else 0.0)
        error = y / sla.response_time - 1 if y > 0 else None
        ended, broken = lately.minute_ended[model], lately.minute_broken[model]
        case = Case(
            m,
            spec,
            error,
            executables,
            workers,
            self.history,
            broken=lately.broken[model],
            ended=lately.ended[model],
            arrivals=lately.arrivals[model],
            ever=lately.ever[model],
        )
        state, why = diagnose(case)
        return Row(
            model=model,
            state=state,
            why=why,
            statistic=sla.statistic.value,
            sla=sla.response_time,
            set_point=sla.set_point,
            response_time=m.response_time,
            error=error,
            arrivals=m.arrivals / m.seconds,
            ended=m.ended / m.seconds,
            broken=m.broken / m.seconds,
            gpu_share=m.answered_gpu / m.answered if m.answered else None,
            late_share=broken / ended if ended else None,
            waiting=m.waiting,
            in_flight=m.in_flight,
            oldest_age=m.oldest_age,
            demanded=_sum(e.demand for e in executables),
            allocated=_sum(e.allocation for e in executables),
            applied=_sum(e.applied for e in executables),
            used=_sum(e.used for e in executables),
            throttled=max((e.throttled for e in executables if e.throttled is not None), default=0),
            executables=executables,
        )


class _Lately:
    """Sums over the last seconds, of all models at once: one by one they would cost ten times."""

    def __init__(self, history: History) -> None:
        self.minute_ended = history.totals("ended", RECENT)
        self.minute_broken = history.totals("broken", RECENT)
        self.ended = history.totals("ended", LATELY)
        self.broken = history.totals("broken", LATELY)
        self.arrivals = history.totals("arrivals", IDLE_AFTER)
        self.ever = history.totals("arrivals", LENGTH)


_FROM_SUPERVISOR = (
    "demand",
    "allocation",
    "applied",
    "observed",
    "used",
    "throttled",
    "minimum",
    "maximum",
    "limit",
    "failure",
    "why",
)


def _executables(
    reply: ExchangeReply,
    specs: Iterable[ExecutorSpec],
    supervisors: Mapping[str, tuple[Worker, Mapping[str, Any]]],
) -> dict[str, list[Executable]]:
    """Return the executables that can run each model."""
    known = {spec.name: spec for spec in specs}
    found: dict[str, list[Executable]] = {}
    for report in reply.executors:
        spec = known.get(report.executor)
        if spec is None:
            continue
        worker, states = supervisors.get(spec.worker, (None, {}))
        state = states.get(spec.name, {}) if worker is not None and worker.answers else {}
        executable = Executable(
            executable=spec.name,
            worker=spec.worker,
            device=spec.device.value,
            state=report.state,
            in_flight=report.in_flight,
            **{key: state[key] for key in _FROM_SUPERVISOR if key in state},
        )
        for model in spec.models:
            found.setdefault(model, []).append(executable)
    return found


def _sample(m: Moment, executables: Sequence[Executable]) -> tuple[float, ...]:
    """Return one sample in the order of `history.COLUMNS`."""

    def cores(values: Iterable[float | None]) -> float:
        total = _sum(values)
        return math.nan if total is None else total

    return (
        math.nan if m.response_time is None else m.response_time,
        m.waiting,
        m.oldest_age,
        max((e.throttled or 0.0 for e in executables), default=0.0),
        m.arrivals / m.seconds,
        m.answered_gpu / m.answered if m.answered else math.nan,
        m.ended / m.seconds,
        m.broken / m.seconds,
        cores(e.demand for e in executables),
        cores(e.allocation for e in executables),
        cores(e.applied for e in executables),
        cores(e.used for e in executables),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None

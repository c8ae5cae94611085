"""The board: per model, its promise, its load, its cores and what stands in the way; once a second.

It joins what the dispatcher counts with what the supervisors decided. Where a supervisor is silent,
its last word is not shown as if it were news: its numbers are absent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roma.exchange import ExchangeReply
from roma.model import Device, ExecutorSpec, ModelSpec
from roma.view.diagnosis import IDLE_AFTER, LATELY, Case, diagnose
from roma.view.history import COLUMNS, History
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
        self._arrived: dict[str, int] = {}

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
        self._arrived = {m.model: m.arrivals for m in reply.models}
        workers = {name: worker for name, (worker, _) in supervisors.items()}
        found = _executables(reply, executors, supervisors)
        samples = {m.model: _sample(m, found.get(m.model, []), workers) for m in moments}
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
        y = max(m.response_time or 0.0, m.oldest_age if m.waiting or m.in_flight else 0.0)
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
            ever=self._arrived[model] > 0,
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
            **_cores(executables, workers),
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


_TOTALS = {"demanded": "demand", "allocated": "allocation", "applied": "applied", "used": "used"}


def _cores(
    executables: Sequence[Executable], workers: Mapping[str, Worker]
) -> dict[str, float | None]:
    """Return what a model's executables have together, and the most throttled one's share.

    All of it is unknown while a supervisor of one of them is silent: what the others say is less,
    and would look as if cores had been taken away.
    """
    controlled = [e for e in executables if e.applied is not None]
    silent = any(
        e.device == Device.CPU and e.worker in workers and not workers[e.worker].answers
        for e in executables
    )
    if silent or not controlled:
        return dict.fromkeys((*_TOTALS, "throttled"))
    found: dict[str, float | None] = {
        name: sum(getattr(e, key) or 0.0 for e in controlled) for name, key in _TOTALS.items()
    }
    return found | {"throttled": max(e.throttled or 0.0 for e in controlled)}


def _sample(
    m: Moment, executables: Sequence[Executable], workers: Mapping[str, Worker]
) -> tuple[float, ...]:
    """Return one sample in the order of `history.COLUMNS`."""
    found = {
        "response_time": m.response_time,
        "waiting": m.waiting,
        "oldest_age": m.oldest_age,
        "arrivals": m.arrivals / m.seconds,
        "on_gpu": m.answered_gpu / m.answered if m.answered else None,
        "ended": m.ended / m.seconds,
        "broken": m.broken / m.seconds,
        **_cores(executables, workers),
    }
    return tuple(math.nan if (v := found[name]) is None else v for name in COLUMNS)

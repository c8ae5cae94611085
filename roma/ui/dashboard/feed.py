"""Dashboard data: promise, load, cores and obstacles of each model, once a second.

It joins the dispatcher's counts with the supervisors' decisions. If a supervisor is silent, its
numbers are absent: stale values are not shown as current.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roma.domain.exchange import LOADING, ExchangeReply
from roma.domain.model import Device, ExecutorSpec, ModelSpec
from roma.ui.dashboard.diagnosis import IDLE_AFTER, LATELY, ModelFacts, diagnose
from roma.ui.dashboard.history import History
from roma.ui.dashboard.moments import Moment, Moments
from roma.ui.dashboard.rows import DashboardView, ExecutableRow, ModelRow, Worker

RECENT = 60
"""Seconds over which the share of broken promises is shown."""


class Dashboard:
    """The latest view of a deployment, and its last 15 minutes."""

    def __init__(self, name: str, links: Mapping[str, str] | None = None) -> None:
        self.history = History()
        self.view = DashboardView(name, 0.0, [], [], dict(links or {}))
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
        reasons: Mapping[str, str] | None = None,
        missing: Mapping[str, Mapping[str, str]] | None = None,
    ) -> list[Moment]:
        """Take one sample of everything; `now` is the dispatcher's clock, `at` the wall clock.

        `supervisors` maps a worker to its state and to the states of its executables as its
        supervisor reports them; `reasons` maps an executable to the reason why it cannot serve,
        and `missing` a live one to such reasons of the models that its server lacks. Returns the
        new moments.
        """
        moments = self._moments.take(reply, now)
        arrived = {m.model for m in reply.models if m.arrivals}
        workers = {name: worker for name, (worker, _) in supervisors.items()}
        found = _executables(reply, executors, supervisors, reasons or {}, missing or {})
        cores = {m.model: _cores(found.get(m.model, []), workers) for m in moments}
        self.history.add(at, {m.model: _sample(m, cores[m.model]) for m in moments})
        lately = _Lately(self.history)
        rows = [
            self._row(
                m,
                models[m.model],
                found.get(m.model, []),
                workers,
                cores=cores[m.model],
                lately=lately,
                ever=m.model in arrived,
            )
            for m in moments
            if m.model in models
        ]
        rows.sort(key=lambda row: (row.state.rank, -(row.error or 0.0), row.model))
        self.view = replace(self.view, at=at, workers=list(workers.values()), models=rows)
        return moments

    def _row(
        self,
        m: Moment,
        spec: ModelSpec,
        executables: list[ExecutableRow],
        workers: Mapping[str, Worker],
        *,
        cores: "_Cores",
        lately: "_Lately",
        ever: bool,
    ) -> ModelRow:
        sla, model = spec.sla, m.model
        y = max(m.response_time or 0.0, m.oldest_age if m.waiting or m.in_flight else 0.0)
        error = y / sla.response_time - 1 if y > 0 else None
        ended, broken = lately.minute_ended[model], lately.minute_broken[model]
        case = ModelFacts(
            m,
            spec,
            error,
            executables,
            workers,
            self.history,
            broken=lately.broken[model],
            ended=lately.ended[model],
            arrivals=lately.arrivals[model],
            ever=ever,
        )
        state, why = diagnose(case)
        return ModelRow(
            model=model,
            state=state,
            why=why,
            statistic=sla.statistic.value,
            budget=sla.budget,
            sla=sla.response_time,
            set_point=sla.set_point,
            response_time=m.response_time,
            error=error,
            arrivals=m.arrivals / m.seconds,
            ended=m.ended / m.seconds,
            broken=m.broken / m.seconds,
            gpu_share=m.answered_gpu / m.answered if m.answered else None,
            late_share=broken / ended if ended else None,
            ended_lately=ended,
            waiting=m.waiting,
            in_flight=m.in_flight,
            oldest_age=m.oldest_age,
            demanded=cores.demanded,
            allocated=cores.allocated,
            applied=cores.applied,
            used=cores.used,
            throttled=cores.throttled,
            executables=executables,
        )


class _Lately:
    """Sums over the last seconds for all models at once; separately they cost ten times as much."""

    def __init__(self, history: History) -> None:
        self.minute_ended = history.totals("ended", RECENT)
        self.minute_broken = history.totals("broken", RECENT)
        self.ended = history.totals("ended", LATELY)
        self.broken = history.totals("broken", LATELY)
        self.arrivals = history.totals("arrivals", IDLE_AFTER)


FROM_SUPERVISOR = (
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
    "contention",
    "why",
)
"""Fields of an `ExecutableRow` that a supervisor knows."""


def _executables(
    reply: ExchangeReply,
    specs: Iterable[ExecutorSpec],
    supervisors: Mapping[str, tuple[Worker, Mapping[str, Any]]],
    reasons: Mapping[str, str],
    missing: Mapping[str, Mapping[str, str]],
) -> dict[str, list[ExecutableRow]]:
    """Return the executables that can run each model; one that lacks it is still loading it."""
    known = {spec.name: spec for spec in specs}
    found: dict[str, list[ExecutableRow]] = {}
    for report in reply.executors:
        spec = known.get(report.executor)
        if spec is None:
            continue
        worker, states = supervisors.get(spec.worker, (None, {}))
        state = states.get(spec.name, {}) if worker is not None and worker.answers else {}
        executable = ExecutableRow(
            executable=spec.name,
            worker=spec.worker,
            device=spec.device.value,
            state=report.state,
            in_flight=report.in_flight,
            reason=reasons.get(spec.name, ""),
            **{key: state[key] for key in FROM_SUPERVISOR if key in state},
        )
        lacking = missing.get(spec.name)
        for model in spec.models:
            row = executable
            if lacking is not None:
                lacks, why = model in lacking, lacking.get(model, "")
                row = replace(row, state=LOADING if lacks else row.state, reason=why)
            found.setdefault(model, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class _Cores:
    """Cores of all executables of a model together, and the highest throttled share known."""

    demanded: float | None = None
    allocated: float | None = None
    applied: float | None = None
    used: float | None = None
    throttled: float | None = None


def _cores(executables: Sequence[ExecutableRow], workers: Mapping[str, Worker]) -> _Cores:
    """Return the sums; all are unknown while a supervisor of one executable is silent.

    A sum over the others is lower, and would look as if cores had been taken away.
    """
    demanded = allocated = applied = used = 0.0
    throttled = None
    controlled = False
    for e in executables:
        if e.applied is not None:
            controlled = True
            demanded += e.demand or 0.0
            allocated += e.allocation or 0.0
            applied += e.applied
            used += e.used or 0.0
            if e.throttled is not None:
                throttled = max(throttled or 0.0, e.throttled)
        elif e.device == Device.CPU and e.worker in workers and not workers[e.worker].answers:
            return _Cores()
    return _Cores(demanded, allocated, applied, used, throttled) if controlled else _Cores()


def _sample(m: Moment, cores: _Cores) -> tuple[float | None, ...]:
    """Return one sample in the order of `history.COLUMNS`."""
    return (
        m.response_time,
        m.waiting,
        m.oldest_age,
        cores.throttled,
        m.arrivals / m.seconds,
        m.answered_gpu / m.answered if m.answered else None,
        m.ended / m.seconds,
        m.broken / m.seconds,
        cores.demanded,
        cores.allocated,
        cores.applied,
        cores.used,
    )

"""Diagnosis of a model in one line: its state and the first cause that applies, worst first.

It only summarises the numbers of the same row; the decision log has the details.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roma.domain import units
from roma.domain.model import ModelSpec
from roma.domain.words import counted
from roma.ui.dashboard.history import History
from roma.ui.dashboard.moments import Moment
from roma.ui.dashboard.rows import ExecutableRow, ModelState, Worker

MEAN_BUDGET = 0.02
"""Share of late, refused and failed requests up to which a model counts as in time if its promise
is on the mean, which has no budget."""

LATELY = 5
"""Seconds that determine the state, so that one bad second stays visible long enough to be seen."""

IDLE_AFTER = 10
"""Seconds without a request after which a model is idle."""

JUMP = 1.5
"""Ratio of the load of the last three seconds to the ten before from which it is a jump."""

MOVED = 0.01
"""Smallest change in cores that is reported."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model; `error` as in `ModelRow`, `executables` those that can run it.

    `broken` and `ended` count the requests of the last `LATELY` seconds, `arrivals` those of the
    last `IDLE_AFTER`; `ever` is true once a request has arrived.
    """

    moment: Moment
    spec: ModelSpec
    error: float | None
    executables: Sequence[ExecutableRow]
    workers: Mapping[str, Worker]
    history: History
    broken: float
    ended: float
    arrivals: float
    ever: bool

    @property
    def hosts(self) -> list[Worker]:
        """The workers of its executables."""
        names = dict.fromkeys(e.worker for e in self.executables)
        return [self.workers[name] for name in names if name in self.workers]


def diagnose(case: ModelFacts) -> tuple[ModelState, str]:
    """Return a model's state and its reason."""
    if not any(e.live for e in case.executables):
        return ModelState.DOWN, _unserved(case.executables)
    if _idle(case):
        return ModelState.IDLE, "no request now" if case.ever else "no request yet"
    state, obstacle = _state(case), _obstacle(case)
    if state is ModelState.OK:
        return state, obstacle or "in time"
    return state, _symptom(case) + (obstacle or _following(case))


def _state(case: ModelFacts) -> ModelState:
    error, sla = case.error, case.spec.sla
    tolerated = MEAN_BUDGET if sla.budget is None else sla.budget
    if (error is not None and error > 0) or case.broken > tolerated * case.ended:
        return ModelState.LATE
    if error is not None and (error + 1) * sla.response_time > sla.set_point:
        return ModelState.TIGHT
    return ModelState.OK


def _idle(case: ModelFacts) -> bool:
    m = case.moment
    if m.waiting or m.in_flight or m.arrivals:
        return False
    return not case.arrivals


def _unserved(executables: Sequence[ExecutableRow]) -> str:
    if not executables:
        return "it has no executable"
    if all(e.reason for e in executables):
        return f"unavailable: {'; '.join(e.reason for e in executables)}"
    states = ", ".join(e.reason or f"{e.executable} is {e.state}" for e in executables)
    return f"nothing can serve it: {states}"


def _symptom(case: ModelFacts) -> str:
    """Return the symptom that clients notice."""
    m, sla = case.moment, case.spec.sla
    if m.refused:
        reason, n = max(m.rejected.items(), key=lambda item: item[1])
        return f"{counted(n, 'request')} refused just now ({reason.replace('_', ' ')}): "
    if m.failed:
        return f"{counted(m.failed, 'request')} failed just now: "
    if (m.waiting or m.in_flight) and m.oldest_age > sla.response_time:
        states = ((m.waiting, "waits", "wait"), (m.in_flight, "runs", "run"))
        inside = [f"{n} {does if n == 1 else do}" for n, does, do in states if n]
        oldest = units.milliseconds(m.oldest_age)
        return f"{' and '.join(inside)}, the oldest for {oldest:.0f} ms: "
    # A measured time below the SLA does not explain promises broken a moment ago.
    bound = sla.response_time if case.broken else sla.set_point
    if m.response_time is not None and m.response_time > bound:
        measured, promised = (units.milliseconds(s) for s in (m.response_time, sla.response_time))
        return f"{measured:.0f} ms of {promised:.0f} ms: "
    if not case.broken:
        return ""
    return f"{counted(case.broken, 'promise')} broken in the last {LATELY} s: "


def _obstacle(case: ModelFacts) -> str:
    """Return the obstacle that keeps control from helping, or an empty string."""
    for worker in case.hosts:
        if not worker.answers:
            silent = f"supervisor of {worker.worker} is silent for {worker.silent_for:.0f} s"
            return f"{silent}, cores do not follow the load"
        if worker.mode != "control":
            return f"cores cannot change on {worker.worker} ({worker.mode})"
        if worker.uncontrolled:
            return f"nothing controls the cores of {worker.worker}: {worker.uncontrolled}"
    gone = [e.reason or e.executable for e in case.executables if not e.live]
    if gone:
        return f"{'; '.join(gone)} not ready, the others carry the load"
    found = (_limited(e, case.workers.get(e.worker)) for e in case.executables)
    return next((text for text in found if text), "")


def _limited(e: ExecutableRow, worker: Worker | None) -> str:
    match e.limit:
        case "failure":
            return f"cores of {e.executable} cannot be set: {e.failure}"
        case "held":
            return f"cores of {e.executable} are held: {e.why}"
        case "contended":
            return e.contention
        case "worker_short" if worker is not None:
            return (
                f"worker {e.worker} is short, {worker.demanded or 0:.2f} of "
                f"{worker.capacity or 0:.2f} cores demanded: it gets {e.allocation or 0:.2f} "
                f"of {e.demand or 0:.2f}"
            )
        case "own_maximum":
            return f"needs more than its most cores (cpu.max {e.maximum or 0:g})"
        case _:
            return ""


def _following(case: ModelFacts) -> str:
    """Return the reaction of control."""
    model, history = case.moment.model, case.history
    applied = history.last(model, "applied", LATELY)
    moved = ""
    # Falling cores do not help a late model, so they are no reaction.
    if len(applied) > 1 and applied[-1] - applied[0] >= MOVED:
        moved = f"cores follow, {applied[0]:.2f} → {applied[-1]:.2f}"
    now = float(history.last(model, "arrivals", 3).mean())
    before = history.last(model, "arrivals", 10, skip=3)
    usual = float(before.mean()) if len(before) else 0.0
    if now > JUMP * usual and now > 1:
        return ", ".join(filter(None, (f"load rose from {usual:.0f} to {now:.0f} req/s", moved)))
    reasons = [e.why for e in case.executables if e.why]
    return moved or (reasons[0] if reasons else "nobody controls the cores of what runs it")

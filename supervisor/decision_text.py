"""Decisions as text, for the dashboard, `roma explain` and logs.

One sentence for the measurement, one for the law's demand and its reason, one for the worker's
share, one for the outcome. Nothing is computed here that the decision does not hold.
"""

from enum import StrEnum

from controllers.measurement import Measurement
from roma.domain import units
from supervisor.decision_log import Decision
from supervisor.sharing import GRID

_TERMS = {
    "applied": "what it has",
    "clip": "its bounds",
    "decay": "idleness",
    "initial": "its start value",
    "max": "all there is",
    "min": "the least",
    "minimum": "the least",
    "smaller_replicas": "what smaller replicas cannot have",
}
"""Labels of terms whose names are not clear by themselves."""


class Limit(StrEnum):
    """The reason why an executable has fewer cores than its law asks for."""

    FAILURE = "failure"
    HELD = "held"
    NOT_READY = "not_ready"
    CONTENDED = "contended"
    WORKER_SHORT = "worker_short"
    OWN_MAXIMUM = "own_maximum"
    NONE = "none"


def limit(decision: Decision) -> Limit:
    """Return the first limit between a law's demand and its cores."""
    d = decision
    if d.failure:
        return Limit.FAILURE
    if d.demand.cores is None:
        return Limit.HELD
    if d.measurement is None:
        return Limit.NOT_READY
    return Limit.CONTENDED if d.contended else _of_cores(d)


def _of_cores(d: Decision) -> Limit:
    if d.short:
        return Limit.WORKER_SHORT
    if d.demand.terms.get("clip", 0.0) < 0 and d.wanted >= d.maximum - GRID:
        return Limit.OWN_MAXIMUM
    return Limit.NONE


def explain(decision: Decision) -> str:
    """Return a decision as sentences."""
    contended = _sentence(contended_by(decision))
    said = (_seen(decision), contended, _asked(decision), _shared(decision), _done(decision))
    return " ".join(filter(None, said))


def contended_by(decision: Decision) -> str:
    """Return the user of the CPUs that an executable may use, or an empty string; no full stop."""
    d, m, found = decision, decision.measurement, decision.contention
    if not d.contended or m is None or found is None:
        return ""
    if found.stolen > found.others:
        who = f"the hypervisor takes {found.stolen:.2f} of its host's {found.cpus} CPUs"
    else:
        who = f"others use {found.others:.2f} of its host's {found.cpus} CPUs"
    waited = ""
    if found.waited is not None:
        waits = "it" if found.own else "something"
        waited = f", {waits} waits for one {found.waited:.0%} of the time"
    return (
        f"{who}{waited}: {d.executable} uses {d.used or 0:.2f} of the {m.applied:.2f} cores it "
        f"has, throttled {_share(m.throttled)}"
    )


def _share(part: float | None) -> str:
    return "for an unknown time" if part is None else f"{part:.0%}"


def _seen(d: Decision) -> str:
    m = d.measurement
    if m is None:
        return ""
    if m.idle:
        return "Nothing arrived, waits or runs."
    period = f"{d.dt:.1f}" if d.dt >= 0.1 else f"{d.dt:.2f}"  # the latter began early
    parts = [f"{_count(m.arrivals)} requests arrived in {period} s", *_answered(m)]
    if m.waiting or m.in_flight:
        oldest = units.milliseconds(m.oldest_age)
        parts.append(f"{m.waiting} wait and {m.in_flight} run, the oldest for {oldest:.0f} ms")
    if m.shed:
        parts.append(f"{_count(m.shed)} were refused because they would have been late")
    if m.failed:
        parts.append(f"{_count(m.failed)} failed")
    if d.used is None:
        parts.append("nobody read how much CPU they used")
    if m.violations:
        parts.append(f"{_count(m.violations)} broke the promise in all")
    aim, sla = units.milliseconds(m.set_point), units.milliseconds(m.sla)
    if m.response_time is None:
        response = "Nothing was answered"
    else:
        response = f"Response time {units.milliseconds(m.response_time):.0f} ms"
    return f"{'; '.join(parts)}. {response} (aim {aim:.0f} ms, SLA {sla:.0f} ms)."


def _answered(m: Measurement) -> list[str]:
    if m.completed_gpu:
        gpu, cpu = _count(m.completed_gpu), _count(m.completed_cpu)
        return [f"{gpu} were answered by GPUs, {cpu} by CPUs"]
    return [f"{_count(m.completed_cpu)} were answered"]


def _asked(d: Decision) -> str:
    demand = d.demand
    if demand.cores is None:
        held = "" if d.allocation is None else f" at {d.wanted:.3f}"
        return f"The cores are held{held}: {demand.why}."
    terms = " ".join(
        f"{value:+.3f} {_TERMS.get(name, name.replace('_', ' '))}"
        for name, value in demand.terms.items()
        if abs(value) >= GRID / 2
    )
    sums = f" = {terms}" if terms else ""
    return f"It needs {demand.cores:.3f} cores{sums} ({demand.why})."


def _shared(d: Decision) -> str:
    if d.allocation is None:
        return "Its quota was never read, so nothing can be set."
    worker = f"{d.total:.2f} of the worker's {d.capacity:.2f} cores are wanted"
    if d.eta is None or d.eta >= 1:
        more = "" if d.exact <= d.wanted + GRID else ", and spare ones are handed out"
        return f"{worker}{more}: it gets {d.allocation:.3f}."
    needed = min(d.floor, d.maximum)
    less = f", less than the {needed:.3f} with which one request meets the set point"
    less = less if d.allocation < needed - GRID else ""
    return f"The worker is short (η = {d.eta:.2f}): {worker}; it gets {d.allocation:.3f}{less}."


def _done(d: Decision) -> str:
    if d.failure:
        stands = "" if d.applied is None else f"; {d.applied:.3f} stand"
        return f"That could not be set: {d.failure}{stands}."
    parts = []
    if d.applied is not None and d.allocation is not None and _differ(d.applied, d.allocation):
        parts.append(f"{d.applied:.3f} are in force.")
    if d.observed is not None and d.applied is not None and _differ(d.observed, d.applied):
        parts.append(f"A period later the kernel granted {d.observed:.3f}: something changed it.")
    if d.burst == 0:
        parts.append("It has no burst: what a quota period leaves unused is lost.")
    return " ".join(parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > GRID


def _count(value: float) -> str:
    """Format a count; scaled from several dispatchers to one period, it may not be whole."""
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"

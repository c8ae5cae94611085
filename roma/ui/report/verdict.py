"""Verdict on a run in a sentence or two: promises kept, and causes of broken ones."""

from collections import Counter
from collections.abc import Sequence

from roma.domain.words import counted
from roma.ui.report.clock import Clock, milliseconds
from roma.ui.report.episodes import Episode, main_limit
from roma.ui.report.read import RecordedRun
from roma.ui.report.summary import ModelSummary
from supervisor.decision_text import Limit

NAMED = 3
"""Most models that the verdict names; the table has the others."""

WHY = {
    Limit.FAILURE: "because its cores could not be set",
    Limit.HELD: "while its cores were held, for the load could not be seen",
    Limit.NOT_READY: "because its executable was not ready",
    Limit.CONTENDED: "because others had the CPUs of the host of {}",
    Limit.WORKER_SHORT: "because {} was short of cores",
    Limit.OWN_MAXIMUM: "because it needed more than the most cores it may have",
    Limit.NONE: "while nothing kept its cores from its law's demand",
}
"""Cause of a broken promise by limit, as the end of a sentence."""

UNKNOWN = "and nothing is recorded of its cores then"

LIMITS = {
    Limit.FAILURE: "cores could not be set",
    Limit.HELD: "cores were held",
    Limit.NOT_READY: "executable not ready",
    Limit.CONTENDED: "others had the host's CPUs",
    Limit.WORKER_SHORT: "worker short of cores",
    Limit.OWN_MAXIMUM: "at its own maximum",
    Limit.NONE: "nothing in the way",
}
"""Cause by limit, as the text of a table cell."""


def verdict(
    run: RecordedRun, found: Sequence[ModelSummary], episodes: Sequence[Episode], clock: Clock
) -> list[str]:
    """Return the verdict, one sentence per item."""
    judged = [s for s in found if s.kept is not None]
    if not judged:
        return ["No request counted while this was recorded, so no promise was put to the test."]
    broken = sorted((s for s in judged if not s.kept), key=lambda s: -s.broken_share)
    kept = len(judged) - len(broken)
    said = [f"{kept} of {counted(len(judged), 'promise')} kept."]
    said += [_broken(run, s, episodes, clock) for s in broken[:NAMED]]
    if len(broken) > NAMED:
        said.append(f"{len(broken) - NAMED} more are in the table.")
    brief = [e for e in episodes if e.model in {s.model for s in judged if s.kept}]
    if brief:
        said.append(_brief(brief, clock))
    elif not broken and not episodes:
        said.append("There was no second in which one was broken.")
    idle = len(found) - len(judged)
    if idle:
        said.append(f"Of {counted(idle, 'model')} no request counted.")
    return said


def why(run: RecordedRun, model: str, limits: Counter[Limit]) -> str:
    """Return the cause of a model's broken promises, as the end of a sentence."""
    limit = main_limit(limits)
    if limit is None:
        return UNKNOWN
    workers = sorted({track.worker for track in run.serving(model)})
    name = f"worker {workers[0]}" if len(workers) == 1 else f"a worker ({', '.join(workers)})"
    return WHY[limit].format(name)


def share(value: float) -> str:
    """Return a share in percent; a positive share is never shown as 0."""
    percent = 100 * value
    if percent <= 0 or percent >= 9.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 0.1 else "< 0.1 %"


def _broken(run: RecordedRun, s: ModelSummary, episodes: Sequence[Episode], clock: Clock) -> str:
    mine = [e for e in episodes if e.model == s.model]
    said = f"{s.model} broke its promise in {share(s.broken_share)} of requests"
    if not mine:
        return f"{said}, a few at a time."
    start, end = min(e.span.start for e in mine), max(e.span.end for e in mine)
    span = f"{clock.time(start)} and {clock.time(end)}"
    limits = sum((e.limits for e in mine), Counter[Limit]())
    times = "" if len(mine) == 1 else f" in {len(mine)} episodes"
    return f"{said}, mostly{times} between {span}, {why(run, s.model, limits)}."


def _brief(episodes: Sequence[Episode], clock: Clock) -> str:
    """Return a sentence for a model or models that kept the promise in spite of episodes."""
    e, models = episodes[0], len({e.model for e in episodes})
    count = counted(len(episodes), "episode")
    whose = e.model if models == 1 else f"{models} models"
    worst = f" ({share(e.broken_share)} of requests broke the promise)"
    if e.worst is not None and e.worst > e.sla:
        worst = f" ({milliseconds(e.worst)}, promised {milliseconds(e.sla)})"
    which = "" if len(episodes) == 1 else ", the worst"
    also = "" if models == 1 else f" of {e.model}"
    return (
        f"Over the whole run {whose} kept within what was promised in spite of {count}"
        f"{which}{also} from {clock.between(e.span)}{worst}."
    )

"""The report's page: one file without scripts and without network requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from roma.ui.report import style
from roma.ui.report.clock import Clock, duration, milliseconds
from roma.ui.report.columns import GAP, MISSED, Span
from roma.ui.report.episodes import EPISODE_GAP, MAIN_CAUSE_SHARE, Episode, Word
from roma.ui.report.figures import POINTS
from roma.ui.report.markup import Html, items, joined, table, tag
from roma.ui.report.read import LIMITS as ORDER
from roma.ui.report.read import RecordedRun
from roma.ui.report.summary import REFUSED, Cores, ModelSummary, total
from roma.ui.report.verdict import LIMITS, share
from supervisor.decision_text import explain

SHOWN = 10
"""Most episodes described in full."""

DAY = 86400.0
"""Seconds from which a gap may be a clock that was set."""

NAMED = 5
"""Most models or executables named in one line."""

_CSS = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:2rem 1.25rem 4rem;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.2rem;margin:2.5rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.5rem 0 .25rem}
p{margin:.4rem 0;max-width:50rem}
ul{margin:.4rem 0;padding-left:1.2rem;max-width:50rem}
.muted,figcaption,dt{color:var(--muted)}
.verdict{margin:1.25rem 0;padding:1rem 1.25rem;background:var(--panel);border-radius:.4rem;
border-left:.35rem solid var(--applied)}
.verdict.broken{border-color:var(--sla)}
.verdict p:first-child{font-size:1.15rem;font-weight:600}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem 1.5rem}
dt{font-size:.85rem}
dd{margin:0;font-size:1.15rem;font-weight:600}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.35rem .4rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--muted);vertical-align:bottom}
.number{text-align:right}
td{white-space:nowrap}
td .muted{font-size:.85em}
td b{color:var(--sla);white-space:nowrap}
figure{margin:.75rem 0;overflow-x:auto}
figure svg{display:block;width:100%;min-width:40rem;height:auto}
figure svg text{font-family:inherit!important}
.episode{margin:1rem 0;padding:.25rem 0 .25rem 1rem;border-left:.2rem solid var(--sla)}
.episode h3{margin-top:.25rem}
@media print{body{max-width:none;padding:0}figure,.episode,tr{break-inside:avoid}}
"""


@dataclass(frozen=True, slots=True)
class Content:
    """Content of the page; `pictures` are SVG by `model NAME` or `worker NAME`."""

    title: str
    run: RecordedRun
    clock: Clock
    step: float
    said: Sequence[str]
    summaries: Sequence[ModelSummary]
    workers: Mapping[str, Cores]
    episodes: Sequence[Episode]
    words: Sequence[Sequence[Word]]
    pictures: Mapping[str, str]


def page(content: Content) -> str:
    """Return the whole page."""
    c = content
    body = joined(
        (
            tag("h1", c.title),
            tag("p", _when(c), class_="muted"),
            _verdict(c),
            _facts(c),
            *_models_table(c),
            *_episodes(c),
            *_pictures(c, "model", "Models"),
            *_workers(c),
            *_missing(c),
            *_method(c),
        )
    )
    head = joined(
        (
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            tag("title", c.title),
            tag("style", Html(style.css() + _CSS)),
        )
    )
    html = tag("html", tag("head", head), tag("body", tag("main", body)), lang="en")
    return f"<!doctype html>\n{html}\n"


def _when(c: Content) -> str:
    laws = ", ".join(c.run.laws) or "not recorded"
    name = "law" if len(c.run.laws) < 2 else "laws"
    return f"{c.clock.whole()}, {duration(c.run.whole.seconds)}; {name} {laws}"


def _verdict(c: Content) -> Html:
    broken = any(s.kept is False for s in c.summaries)
    first, *rest = c.said or ["Nothing is known of the requests."]
    more = (tag("p", sentence) for sentence in rest)
    return tag("div", tag("p", first), *more, class_="verdict broken" if broken else "verdict")


def _facts(c: Content) -> Html:
    facts: dict[str, str] = {}
    if c.summaries:
        ended = sum(s.ended for s in c.summaries)
        broken = sum(s.broken for s in c.summaries)
        facts["requests"] = _number(sum(s.requests for s in c.summaries))
        facts["broke their promise"] = share(broken / ended if ended else 0.0)
    if c.workers:
        cores = total(c.workers)
        facts["core-seconds applied"] = f"{cores.applied:,.1f}"
        facts["core-seconds used"] = f"{cores.used:,.1f}"
        facts["all cores, always"] = f"{cores.all:,.1f}"
        if cores.saved is not None:
            facts["saved against that"] = share(cores.saved)
    return tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts.items()))


def _models_table(c: Content) -> Iterable[Html]:
    if not c.summaries:
        return
    yield tag("h2", "Promises")
    columns = (
        "model",
        "promise",
        "kept",
        "requests",
        "answered",
        "late",
        "refused",
        "failed",
        "worst",
        "over SLA",
        "core-s allocated",
        "core-s applied",
        "core-s used",
    )
    yield table(columns, (_model_row(s) for s in c.summaries), words=3)
    cores = total(c.workers) if c.workers else None
    if cores is not None and cores.saved is not None:
        yield tag(
            "p",
            f"All together {cores.applied:,.1f} core-seconds were applied, of {cores.all:,.1f} "
            f"that all cores, always, would have been: {share(cores.saved)} saved.",
        )


def _model_row(s: ModelSummary) -> tuple[str, ...]:
    reasons = (f"{n:,} {reason.replace('_', ' ')}" for reason, n in s.refused.most_common())
    own = f"{s.by_client:,} by their client's own limit" if s.by_client else ""
    gpu = f"{share(s.on_gpu / s.answered)} by GPUs" if s.on_gpu else ""
    given_up = f"{s.given_up:,} given up when too late" if s.given_up else ""
    broken = tag("b", f"no: {share(s.broken_share)} broken")
    kept = {None: "no request", True: f"yes: {share(s.broken_share)} broken", False: broken}[s.kept]
    if s.statistic.value == "mean" and s.mean is not None:
        text = f"mean {milliseconds(s.mean)}"
        kept = tag("b", f"no: {text}") if s.kept is False else f"yes: {text}"
    cores: tuple[str, ...] = ("–",) * 3
    if s.cores is not None:
        cores = tuple(f"{x:,.1f}" for x in (s.cores.allocated, s.cores.applied, s.cores.used))
    return (
        s.model,
        s.promise,
        kept,
        _number(s.requests),
        _with(_number(s.answered), gpu),
        _with(_number(s.late), given_up),
        _with(_number(s.refused.total()), *reasons, own),
        _number(s.failed),
        milliseconds(s.worst),
        f"{s.over:.0f} s",
        *cores,
    )


def _episodes(c: Content) -> Iterable[Html]:
    if not c.summaries:
        return
    yield tag("h2", "When promises were broken")
    if not c.episodes:
        yield tag("p", "Never, in what is recorded.")
        return
    if len(c.episodes) > SHOWN:
        yield tag("p", f"The worst {SHOWN} of {len(c.episodes)} episodes.", class_="muted")
    for episode, told in zip(c.episodes[:SHOWN], c.words, strict=False):
        yield _episode(c, episode, told)


def _episode(c: Content, e: Episode, told: Sequence[Word]) -> Html:
    broken = (
        f"{share(e.broken_share)} of {_number(e.ended)} requests broke the promise: "
        f"{_number(e.late)} late, {_number(e.refused)} refused, {_number(e.failed)} failed"
        + (f", {_number(e.given_up)} given up when too late" if e.given_up else "")
    )
    worst = (
        ""
        if e.worst is None
        else f"; at worst {milliseconds(e.worst)} at {c.clock.time(e.worst_at)}"
    )
    return tag(
        "div",
        tag("h3", f"{e.model}, {c.clock.between(e.span)} ({duration(e.span.seconds)})"),
        tag("p", f"{broken}{worst} (SLA {milliseconds(e.sla)})."),
        tag("p", _limits(e)),
        *(
            tag(
                "p",
                tag(
                    "span",
                    f"{w.decision.executable} {w.when}, {c.clock.time(w.at)}: ",
                    class_="muted",
                ),
                explain(w.decision),
            )
            for w in told
        ),
        class_="episode",
    )


def _limits(e: Episode) -> str:
    limit = e.limit
    if limit is None:
        return "No decision about its cores is recorded for that time."
    if len(e.limits) == 1:
        return f"Main limit: {LIMITS[limit]}, in each of {e.limits.total()} decisions."
    counts = ", ".join(f"{LIMITS[k]} in {e.limits[k]}" for k in ORDER if e.limits[k])
    return f"Main limit: {LIMITS[limit]}. Of {e.limits.total()} decisions: {counts}."


def _pictures(c: Content, kind: str, heading: str) -> Iterable[Html]:
    mine = {k: v for k, v in c.pictures.items() if k.startswith(f"{kind} ")}
    if not mine:
        return
    yield tag("h2", heading)
    if c.step > 1:
        yield tag(
            "p",
            f"A step of a curve is {duration(c.step)}: the worst second of it (for η the lowest), "
            "of requests per second the mean.",
            class_="muted",
        )
    for key, picture in mine.items():
        yield tag("h3", key.removeprefix(f"{kind} "))
        yield tag("figure", Html(picture), role="img", aria_label=f"{key} over time")


def _workers(c: Content) -> Iterable[Html]:
    if not c.workers:
        return
    yield from _pictures(c, "worker", "Workers")
    columns = ("worker", "core-s allocated", "applied", "used", "all cores, always", "saved")
    yield table(
        columns,
        (
            (
                name,
                *(f"{x:,.1f}" for x in (k.allocated, k.applied, k.used, k.all)),
                "–" if k.saved is None else share(k.saved),
            )
            for name, k in c.workers.items()
        ),
    )


def _missing(c: Content) -> Iterable[Html]:
    notes = [*c.run.notes, *gap_notes(c.run, c.clock)]
    if notes:
        yield tag("h2", "What is not recorded")
        yield items(notes)


def gap_notes(run: RecordedRun, clock: Clock) -> list[str]:
    """Return a sentence per gap in the records, shared by all that have the same gap."""
    found: dict[tuple[Span, str], list[str]] = {}
    for model in run.models.values():
        for gap in model.gaps:
            found.setdefault((gap, "dispatcher"), []).append(model.name)
    for executable in run.executables.values():
        for gap in executable.gaps:
            found.setdefault((gap, "supervisor"), []).append(executable.name)
    said = []
    for (gap, who), names in sorted(found.items(), key=lambda item: item[0][0].start):
        what = "requests" if who == "dispatcher" else "decisions"
        jump = ", or its clock was set" if gap.seconds > DAY else ""
        said.append(
            f"{clock.between(gap)} ({duration(gap.seconds)}): no {what} of {_names(names)}: "
            f"the {who} was away or could not write{jump}."
        )
    return said


def _names(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _method(c: Content) -> Iterable[Html]:
    yield tag("h2", "How the numbers came about")
    yield items(
        (
            f"From {c.run.directory.resolve().name}/models.jsonl (each model once a second, by "
            "the dispatcher) and decisions-WORKER.jsonl (each executable once a control period, by "
            "its supervisor). Requests are counted in the second in which they end or arrive; what "
            "waits or runs when the record ends is counted as arrived only.",
            "Response time: queue plus execution, as the statistic that control uses (mean, p95 or "
            "p99), over the dispatcher's window at each second; or the age of the oldest request "
            "inside, if that is more. “Worst” is its highest value, “over SLA” the seconds in "
            "which it was above.",
            "A promise is kept if no more requests were late, refused, failed, or given up by "
            "their client when they were too late, than its budget; a mean if the mean of all "
            f"requests is within the SLA, where a refused or failed one counts as {REFUSED:g} "
            "SLAs.",
            "A second is broken if its response time was above the SLA or more requests broke the "
            "promise than the budget lets pass (of a mean: any refused or failed). "
            f"Broken seconds with less than {EPISODE_GAP:g} s between them are one episode; "
            "the worst is "
            "that with most broken promises.",
            "The main limit is what most decisions of the episode met, if at least "
            f"{share(MAIN_CAUSE_SHARE)} of them did.",
            "Core-seconds: what was allocated (granted by the supervisor) and applied (confirmed "
            "by the actuator), each until the next decision, and what the executables used by the "
            "kernel's accounting. All cores, always: the worker's allocatable cores over the time "
            "that decisions cover. GPUs are in none of them.",
            f"A gap is {GAP:g} s that no look at a model covers, or {MISSED:g} control periods "
            "without a decision. Nothing is filled in: gaps add no requests and no core-seconds.",
            f"Pictures have up to {POINTS} steps of time; each step shows the worst of it (for η "
            "the lowest), of requests per second the mean. Tables and episodes use every record.",
        )
    )


def _with(value: str, *details: str) -> Html:
    """Return a cell with details below."""
    return joined((value, *(tag("div", text, class_="muted") for text in details if text)))


def _number(value: int) -> str:
    return f"{value:,}"

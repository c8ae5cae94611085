"""Episodes: time spans in which promises were broken, with their causes."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roma.ui.report.columns import GAP, Span
from roma.ui.report.read import LIMITS, ExecutableTrack, ModelTrack, RecordedRun
from supervisor.decision_log import Decision
from supervisor.decision_text import Limit

Flags = npt.NDArray[np.bool_]

EPISODE_GAP = 5.0
"""Seconds between two episodes below which they are merged."""

MAIN_CAUSE_SHARE = 0.25
"""Share of an episode's decisions from which a limit is named instead of `none`."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A time span in which a model's promise was broken; `bad` counts its broken seconds.

    `ended` are the requests that count for the promise, `broken` those of them that broke it.
    `worst` is the highest response time, in the second that ends at `worst_at`; `limits` counts the
    decisions about the model's executables by their limit.
    """

    model: str
    span: Span
    bad: float
    ended: int
    broken: int
    late: int
    refused: int
    failed: int
    given_up: int
    worst: float | None
    worst_at: float
    sla: float
    limits: Counter[Limit]

    @property
    def broken_share(self) -> float:
        """Share of broken promises among the requests that ended."""
        return self.broken / self.ended if self.ended else 0.0

    @property
    def severity(self) -> tuple[int, float]:
        """Sort key for severity: broken promises, then broken seconds."""
        return self.broken, (self.worst or 0.0) / self.sla

    @property
    def limit(self) -> Limit | None:
        """The main limit; None if no decision is recorded."""
        return main_limit(self.limits)


@dataclass(frozen=True, slots=True)
class Word:
    """A decision of an episode; `when` names its moment in the episode."""

    when: str
    decision: Decision
    at: float


def main_limit(limits: Counter[Limit]) -> Limit | None:
    """Return the most frequent limit, NONE below `MAIN_CAUSE_SHARE`; None without decisions."""
    if not limits:
        return None
    counts = [(n, limit) for limit, n in limits.items() if limit is not Limit.NONE]
    most, limit = max(counts, key=lambda c: (c[0], -LIMITS.index(c[1])), default=(0, Limit.NONE))
    return limit if most >= MAIN_CAUSE_SHARE * limits.total() else Limit.NONE


def episodes(run: RecordedRun) -> list[Episode]:
    """Return all episodes of all models, the worst first."""
    found = []
    for track in run.models.values():
        flags = bad(track)
        stretched = stretches(track, flags)
        found += [_episode(run, track, flags, first, last) for first, last in stretched]
    return sorted(found, key=lambda e: (*(-x for x in e.severity), e.span.start, e.model))


def bad(track: ModelTrack) -> Flags:
    """Return flags of the seconds in which the promise was broken."""
    over = track.response > track["sla"]
    if track.budget is None:
        return np.asarray(over | (track.counted_refusals + track["failed"] > 0))
    return np.asarray(over | (track.broken > track.budget * track.ended))


def stretches(track: ModelTrack, broken: Flags) -> list[tuple[int, int]]:
    """Return the first and last second of each episode; no episode spans a gap."""
    start, end = track["start"], track["at"]
    found: list[tuple[int, int]] = []
    for i in map(int, np.flatnonzero(broken)):
        if (
            found
            and start[i] - end[found[-1][1]] < EPISODE_GAP
            and not _gap(track, found[-1][1], i)
        ):
            found[-1] = found[-1][0], i
        else:
            found.append((i, i))
    return found


def words(run: RecordedRun, episode: Episode) -> list[Word]:
    """Return the decisions at the beginning of an episode and at its worst moment."""
    found: list[Word] = []
    for when, at in (("at its beginning", episode.span.start), ("at its worst", episode.worst_at)):
        known = [
            (LIMITS[int(track["limit"][i])], track, i)
            for track in run.serving(episode.model)
            if (i := _nearest(track, at)) is not None
        ]
        # Of several executables, take the one with the most severe limit.
        known.sort(key=lambda k: LIMITS.index(k[0]))
        if not known:
            continue
        _, track, i = known[0]
        decision = run.decision(track, i)
        if decision is not None and all(w.decision != decision for w in found):
            found.append(Word(when, decision, float(track["at"][i])))
    return found


def _gap(track: ModelTrack, before: int, after: int) -> bool:
    lost = track["start"][before + 1 : after + 1] - track["at"][before:after]
    return bool((lost > GAP).any())


def _episode(run: RecordedRun, track: ModelTrack, flags: Flags, first: int, last: int) -> Episode:
    part = slice(first, last + 1)
    response, seconds = track.response[part], (track["at"] - track["start"])[part]
    span = Span(float(track["start"][first]), float(track["at"][last]))
    known = not np.isnan(response).all()
    # Without response times, take the second with the most broken promises.
    worst = int(np.nanargmax(response) if known else np.argmax(track.broken[part]))
    return Episode(
        model=track.name,
        span=span,
        bad=float(seconds[flags[part]].sum()),
        ended=int(track.ended[part].sum()),
        broken=int(track.broken[part].sum()),
        late=int(track["late"][part].sum()),
        refused=int(track.counted_refusals[part].sum()),
        failed=int(track["failed"][part].sum()),
        given_up=int(track["cancelled_late"][part].sum()),
        worst=float(response[worst]) if known else None,
        worst_at=float(track["at"][part][worst]),
        sla=float(track["sla"][first]),
        limits=_limits(run, track.name, span),
    )


def _limits(run: RecordedRun, model: str, span: Span) -> Counter[Limit]:
    found: Counter[Limit] = Counter()
    for track in run.serving(model):
        first = np.searchsorted(track.end, span.start, side="right")
        last = np.searchsorted(track["at"], span.end, side="right")
        found.update(LIMITS[int(i)] for i in track["limit"][first:last])
    return found


def _nearest(track: ExecutableTrack, at: float) -> int | None:
    """Return the decision nearest to a time, unless a gap lies between them."""
    i = int(np.abs(track["at"] - at).argmin())
    return i if abs(float(track["at"][i]) - at) <= 2.0 else None

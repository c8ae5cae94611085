"""Summary of a run: each model's promise, its result, and the cores used."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roma.domain.model import Statistic
from roma.ui.report.clock import milliseconds
from roma.ui.report.read import ExecutableTrack, ModelTrack, RecordedRun

REFUSED = 2.0
"""Response time, in SLAs, of a refused or failed request in a mean: refusals must not look fast."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Core-seconds over the recorded decisions; `all` counts every core all the time."""

    allocated: float
    applied: float
    used: float
    all: float

    @property
    def saved(self) -> float | None:
        """The share of all core-seconds that was not applied to any executable."""
        return 1 - self.applied / self.all if self.all > 0 else None


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Summary of one model. `kept` is None if it got no requests.

    `ended` are the requests that count for the promise, `broken` those of them that broke it. The
    `refused` include those `by_client`, which were refused for a limit of their client's own.
    `worst` is the highest response time of any second (the promise's statistic, or the age of the
    oldest request). `over` is the seconds in which that was above the SLA. `mean` counts refused
    and failed requests as `REFUSED` SLAs. `cores` is None if they are not controlled.
    """

    model: str
    statistic: Statistic
    budget: float | None
    sla: float
    requests: int
    ended: int
    broken: int
    answered: int
    on_gpu: int
    late: int
    refused: Counter[str]
    by_client: int
    failed: int
    given_up: int
    mean: float | None
    worst: float | None
    over: float
    kept: bool | None
    cores: Cores | None

    @property
    def promise(self) -> str:
        """The promise in words: the share of requests that its budget leaves, and its SLA."""
        within = milliseconds(self.sla)
        if self.budget is None or self.statistic is Statistic.EACH:
            return f"{self.statistic.value} ≤ {within}"
        return f"{100 * (1 - self.budget):.7g} % ≤ {within}"

    @property
    def broken_share(self) -> float:
        """Share of broken promises among the requests that ended."""
        return self.broken / self.ended if self.ended else 0.0


def summaries(run: RecordedRun) -> list[ModelSummary]:
    """Return the summaries of all recorded models, by name."""
    return [_summary(run, run.models[name]) for name in sorted(run.models)]


def cores(tracks: list[ExecutableTrack], capacity: float = 0.0) -> Cores:
    """Return the core-seconds allocated to executables and used; `capacity` in core-seconds."""
    return Cores(
        allocated=sum(t.allocated_seconds for t in tracks),
        applied=sum(t.applied_seconds for t in tracks),
        used=sum(t.used_seconds for t in tracks),
        all=capacity,
    )


def worker_cores(run: RecordedRun) -> dict[str, Cores]:
    """Return the core-seconds by worker, with the total of all its cores as capacity."""
    return {
        worker: cores(tracks, _capacity(tracks)) for worker, tracks in sorted(run.workers.items())
    }


def _capacity(tracks: list[ExecutableTrack]) -> float:
    """Return a worker's core-seconds over the time with decisions about any of its executables."""
    at = np.concatenate([t["at"] for t in tracks])
    end = np.concatenate([t.end for t in tracks])
    capacity = np.concatenate([t["capacity"] for t in tracks])
    covered, total = -math.inf, 0.0
    for i in np.argsort(at, kind="stable"):
        total += capacity[i] * max(0.0, end[i] - max(at[i], covered))
        covered = max(covered, end[i])
    return float(total)


def total(parts: Mapping[str, Cores]) -> Cores:
    """Return the sum over all workers."""
    return Cores(
        *(sum(getattr(c, name) for c in parts.values()) for name in Cores.__dataclass_fields__)
    )


def _summary(run: RecordedRun, track: ModelTrack) -> ModelSummary:
    serving = run.serving(track.name)
    sla = float(track["sla"][-1])
    response = track.response
    answered = track["answered_cpu"] + track["answered_gpu"]
    ended, broken = int(track.ended.sum()), int(track.broken.sum())
    mean = _mean(track, sla)
    over = response > track["sla"]
    return ModelSummary(
        model=track.name,
        statistic=track.statistic,
        budget=track.budget,
        sla=sla,
        requests=_count(track, "arrivals"),
        ended=ended,
        broken=broken,
        answered=int(answered.sum()),
        on_gpu=_count(track, "answered_gpu"),
        late=_count(track, "late"),
        refused=track.refused,
        by_client=_count(track, "rejected_by_client"),
        failed=_count(track, "failed"),
        given_up=_count(track, "cancelled_late"),
        mean=mean,
        worst=None if np.isnan(response).all() else float(np.nanmax(response)),
        over=float((track["at"] - track["start"])[over].sum()),
        kept=_kept(track.budget, ended, broken, mean, sla),
        cores=cores(serving) if serving else None,
    )


def _kept(
    budget: float | None, ended: int, broken: int, mean: float | None, sla: float
) -> bool | None:
    if not ended:
        return None
    if budget is None:
        return mean is not None and mean <= sla
    return broken <= budget * ended


def _mean(track: ModelTrack, sla: float) -> float | None:
    """Return the mean over the run, from the means of its seconds."""
    # An answer that refuses the input has no response time.
    answered = track["answered_cpu"] + track["answered_gpu"] - track["invalid"]
    known = ~np.isnan(track["mean_time"])
    weight, refused = answered * known, float((track.counted_refusals + track["failed"]).sum())
    count = float(weight.sum()) + refused
    if not count:
        return None
    times = float((weight * np.nan_to_num(track["mean_time"])).sum())
    return (times + refused * REFUSED * sla) / count


def _count(track: ModelTrack, name: str) -> int:
    return int(track[name].sum())

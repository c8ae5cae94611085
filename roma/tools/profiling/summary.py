"""Samples to profile: plain functions of numbers. Times in seconds, cost in core-seconds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from roma.config.profile import ModelProfile, Point
from roma.domain.errors import LaunchError

MOST_NOISE = 3.0
"""The largest coefficient of variation that a profile holds; beyond it a mean has no meaning."""


@dataclass(frozen=True, slots=True)
class RequestSample:
    """A request: what the kernel charged for it, and how long it took."""

    cost: float
    response_time: float


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Requests of `batch` inputs, one after the other, under a quota of `cores`."""

    cores: float
    batch: int
    samples: Sequence[RequestSample]

    @property
    def costs(self) -> list[float]:
        """Core-seconds of each request."""
        return [sample.cost for sample in self.samples]

    @property
    def response_times(self) -> list[float]:
        """Seconds of each request."""
        return [sample.response_time for sample in self.samples]


def point(run: MeasuredRun) -> Point:
    """Return one line of the profile; raise LaunchError if the kernel charged nothing.

    The cost is the mean, because a quota has to cover load times mean cost. The response time is
    the median, which one stall of the machine does not move.
    """
    cost = statistics.fmean(run.costs)
    if cost <= 0:
        raise LaunchError(
            f"{len(run.samples)} requests used no CPU in the cgroup: is it the model server's?"
        )
    return Point(
        cores=_rounded(run.cores),
        batch=run.batch,
        cost=_rounded(cost),
        response_time=_rounded(statistics.median(run.response_times)),
        requests=len(run.samples),
    )


def model_profile(runs: Sequence[MeasuredRun], gpu_times: Sequence[float] = ()) -> ModelProfile:
    """Return the profile of one model; at least one run is of batch 1.

    `parallelism` and `overhead` come from the run of batch 1 with the most cores. Together they
    explain its response time: cost / parallelism + overhead. A request that keeps more than one
    core busy has no visible overhead. One that keeps less than one busy runs on one thread, and
    what its core does not explain is overhead: transport, and the client's own time.
    """
    alone = [run for run in runs if run.batch == 1]
    widest = max(alone, key=lambda run: run.cores)
    parallelism = max(1.0, sum(widest.costs) / sum(widest.response_times))
    reference = point(widest)
    speed = min(parallelism, widest.cores)
    return ModelProfile(
        cost=_rounded(statistics.median(point(run).cost for run in alone)),
        noise=_rounded(statistics.median(variation(run.costs) for run in alone)),
        parallelism=_rounded(parallelism),
        overhead=_rounded(max(0.0, reference.response_time - reference.cost / speed)),
        gpu_time=_rounded(statistics.median(gpu_times)) if gpu_times else None,
        gpu_noise=_rounded(variation(gpu_times)),
        points=tuple(map(point, runs)),
    )


def variation(values: Sequence[float]) -> float:
    """Return the coefficient of variation, at most MOST_NOISE; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return min(MOST_NOISE, statistics.stdev(values) / statistics.fmean(values))


def _rounded(value: float) -> float:
    """Return four significant digits: more than any measurement here can resolve."""
    return float(f"{value:.4g}")

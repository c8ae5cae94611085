"""A `load` of roma.yaml as a stream of send times; memory does not grow with its length."""

import math
from collections.abc import Iterable, Iterator
from itertools import count, repeat

from roma.config.plant import LoadConfig
from roma.workload.arrivals import Profile, RateStep, stream
from roma.workload.errors import WorkloadError
from roma.workload.trace import TraceKind, read_counts, read_trace

MOST_REQUESTS = 1e8
"""Most requests per model: an hour of simulating."""

MOST_BURSTS = 1_000_000


def send_times(load: LoadConfig, duration: float, *, seed: int) -> Iterator[float]:
    """Yield ascending send times in seconds; they may go on beyond `duration`.

    Raises WorkloadError for a trace that cannot be read, and for more than `MOST_REQUESTS`.
    """
    if load.trace is not None:
        times = read_trace(load.trace, load.kind, column=load.column, seed=seed)
        length = math.floor(times[-1]) + 1.0
        if load.kind is TraceKind.COUNTS:
            # Seconds without a request at the end belong to a trace: they count in its mean rate.
            length = float(len(read_counts(load.trace, load.kind, column=load.column)))
        _bound(len(times) * duration / length, duration)
        return repeated(times, length)
    profile = _profile(load, duration)
    _bound(profile.requests, duration)
    return stream(profile, load.process, seed=seed)


def _bound(requests: float, duration: float) -> None:
    if requests > MOST_REQUESTS:
        raise WorkloadError(
            f"{requests:g} requests in {duration:g} s: must be at most {MOST_REQUESTS:g}"
        )


def repeated(times: Iterable[float], length: float) -> Iterator[float]:
    """Yield `times` repeatedly, `length` seconds apart."""
    kept = tuple(times)
    for lap in count():
        for time in kept:
            yield lap * length + time


def _profile(load: LoadConfig, duration: float) -> Profile:
    if load.on_off is not None:
        rate, on, off = load.on_off
        laps = math.ceil(duration / (on + off))
        if laps > MOST_BURSTS:
            raise WorkloadError(f"on_off: {laps} bursts: must be at most {MOST_BURSTS}")
        return Profile(
            tuple(s for _ in repeat(None, laps) for s in (RateStep(0, off), RateStep(rate, on)))
        )
    assert load.profile is not None
    profile = Profile.parse(load.profile, step=load.step)
    missing = duration - profile.duration
    if missing <= 0:
        return profile
    last = profile.steps[-1]
    return Profile((*profile.steps[:-1], RateStep(last.rate, last.duration + missing)))

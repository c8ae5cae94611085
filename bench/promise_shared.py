"""A cheap model beside bad neighbours, and a large, rarely used one, live.

Both on a worker of one core, with its defaults. The cheap model needs less than its fair share; it
meets the same arrivals alone and beside each neighbour. Refused and failed requests are late.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.builds import ROOT
from bench.deployed import AVAILABLE, GONE, LOADING, REST, Deployment, Served, deployed
from bench.loading import bodies_of
from bench.openloop import Stream, in_time, measure
from bench.proxies import scratch
from bench.target import Target, photos
from roma.config.models import DEFAULT_BUDGET
from roma.lab.experiments.base import Check, Column, Table
from roma.lab.experiments.promise import RISE, tabled_beside
from roma.tools.demo import models

ROUNDS, LEAD = 3, 3.0
"""Rounds, and seconds of the load before each that are not counted: the load starts on an idle
model, and what is late until the next tick depends on the tick's time
(docs/experiments/promise.md)."""

SEED = 4000
"""Arrivals of round r are those of SEED + r: no rule was chosen on them."""

CHEAP, CHEAP_SLA, NEED = "digits", 0.25, 0.3
"""The healthy model, its promise in seconds, and the cores that its load needs."""

OTHER, OTHER_SLA, HEAVY, HEAVY_IMAGES = "other", 0.5, 5.0, 4
"""Its neighbour and the neighbour's promise, the heavy one's offered load in capacities, and the
photographs of its requests."""

WARM, WARM_RATE = 5.0, 300.0
"""Seconds and req/s at which the cost of a cheap request is measured; at lower rates each costs
more."""

BIG_SLA, BIG_COST = 0.6, 0.25
"""The rarely used model: its promise in seconds, core-seconds of a request (ResNet50's)."""

SILENCE, SINGLES = 20.0, 5
"""Seconds before each request; the law gives cores back within about 15."""

FIRST, FIRST_IMAGES = 3, 16
"""Requests that measure the cost of an image, and the images of each."""


def beside(seconds: float) -> tuple[Table, list[Check]]:
    """Return the late shares of the cheap model, alone and beside each neighbour."""
    paths = {name: model.path for name, model in models.prepare(ROOT / ".cache").items()}
    with scratch() as directory:
        healthy = {CHEAP: Served(paths[CHEAP], CHEAP_SLA)}
        # From the start: a model added later has a low weight until it is ready.
        looping = {OTHER: Served(_broken(directory), OTHER_SLA)}
        with deployed(directory, healthy, looping) as running:
            cheap = Target(running.port, CHEAP, bodies_of(CHEAP)[0].decode(), 1, CHEAP_SLA, REST)
            rate = NEED / _cost(running, cheap)
            streams = [cheap.stream(rate)]
            loop = _late(running, streams, seconds)
            running.write(healthy)
            running.until(OTHER, GONE)
            begun, used = time.monotonic(), running.used(CHEAP)
            late = {"nobody": _late(running, streams, seconds), "one in a restart loop": loop}
            used = (running.used(CHEAP) - used) / (time.monotonic() - begun)
            with _neighbour(running, healthy, _never_ready(directory), LOADING):
                late["one that never becomes ready"] = _late(running, streams, seconds)
            with _neighbour(running, healthy, paths["photos"], AVAILABLE):
                heavy = Target(running.port, OTHER, photos(HEAVY_IMAGES), 1, OTHER_SLA, REST)
                heavy.closed(directory, 1, WARM)
                capacity, _ = heavy.closed(directory, 2, WARM)
                # The cheap one stays the first, so that its arrivals are the same beside any other.
                streams.append(heavy.stream(HEAVY * capacity))
                late[f"heavy, {HEAVY:g} × the core"] = _late(running, streams, seconds)
    note = (
        f"{CHEAP} at {rate:.0f} req/s ({used:.2f} of 1 core), promise {1000 * CHEAP_SLA:g} ms; the "
        f"heavy one can do {capacity:.0f} req/s; {ROUNDS} rounds of {seconds:g} s, the same "
        f"arrivals. Aim: a rise of ≤ {100 * RISE:g} points"
    )
    return tabled_beside("promise-live-neighbours", late, note, where="live, ")


def rare() -> tuple[Table, list[Check]]:
    """Return the response times of single requests to a large model after silence."""
    path = models.prepare(ROOT / ".cache")["photos"].path
    with scratch() as directory, deployed(directory, {"big": Served(path, BIG_SLA)}) as running:
        big, before = (
            Target(running.port, "big", photos(FIRST_IMAGES), 1, BIG_SLA, REST),
            running.used("big"),
        )
        for _ in range(FIRST):
            big.once()
        cost = (running.used("big") - before) / FIRST / FIRST_IMAGES
        big = replace(big, body=photos(max(1, round(BIG_COST / cost))))
        times, before = [], running.used("big")
        for _ in range(SINGLES):
            time.sleep(SILENCE)
            times.append(big.once())
        cost = (running.used("big") - before) / SINGLES
    return tabled_rare(times, cost)


def tabled_rare(times: Sequence[float], cost: float) -> tuple[Table, list[Check]]:
    """Return the table of response times in seconds, inf for no answer, and its claim."""
    late = sum(t > BIG_SLA for t in times) / len(times)
    columns = (
        Column("requests", "d"),
        Column("late", ".0%"),
        Column("fastest, ms", ".0f"),
        Column("slowest, ms", ".0f"),
    )
    table = Table(
        "promise-live-rare",
        f"Single requests to a big model, after {SILENCE:g} s of silence each",
        columns,
        [(len(times), late, 1000 * min(times), 1000 * max(times))],
        f"{1000 * cost:.0f} core-ms a request on 1 core, promise {1000 * BIG_SLA:g} ms. "
        f"Aim: ≤ {DEFAULT_BUDGET:.0%} late",
    )
    claim = f"live, single requests after {SILENCE:g} s: {late:.0%} late (≤ {DEFAULT_BUDGET:.0%})"
    return table, [Check(claim, late <= DEFAULT_BUDGET)]


def _late(running: Deployment, streams: list[Stream], seconds: float) -> list[float]:
    """Return the cheap model's late share of each round."""
    found = []
    for r in range(ROUNDS):
        report = measure(
            running.port,
            streams,
            seconds,
            sla=CHEAP_SLA,
            core=REST,
            seed=SEED + r,
            lead=LEAD,
        )[CHEAP]
        found.append(1 - in_time(report) / report["all"]["count"])
    return found


def _cost(running: Deployment, cheap: Target) -> float:
    """Return the core-seconds of a cheap request."""
    before = running.used(CHEAP)
    report = measure(running.port, [cheap.stream(WARM_RATE)], WARM, core=REST, seed=SEED - 1)
    return (running.used(CHEAP) - before) / report[CHEAP]["200"]["count"]


@contextmanager
def _neighbour(
    running: Deployment, healthy: Mapping[str, Served], path: Path, state: int
) -> Iterator[None]:
    """Add a model to the file, wait for this status, and finally remove it again."""
    running.write({**healthy, OTHER: Served(path, OTHER_SLA)})
    running.until(OTHER, state)
    try:
        yield
    finally:
        running.write(healthy)
        running.until(OTHER, GONE)


def _never_ready(directory: Path) -> Path:
    """Return a model whose file is a pipe without a writer: reading it never ends."""
    version = directory / "never-ready" / "1"
    version.mkdir(parents=True)
    os.mkfifo(version / "saved_model.pb")
    return version.parent


def _broken(directory: Path) -> Path:
    """Return a model that cannot be loaded: its server imports TensorFlow and exits, each time."""
    version = directory / "broken" / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"no model")
    return version.parent

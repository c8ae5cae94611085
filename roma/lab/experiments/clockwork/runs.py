"""Runs of fleets: clients, loads and plans, on every core, summed over seeds."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import TypeVar

from roma.device.models_table import offers
from roma.domain.actions import ModelCapabilities
from roma.lab.experiments.clockwork.counts import Counts
from roma.lab.experiments.lab import Lab
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Ended, FleetPlan
from roma.lab.sim.scenario import seed_of
from roma.workload.arrivals import poisson_rates

K = TypeVar("K")

PAGES = 31 * 1024 // 16
"""Pages of a V100's 32 GB, less 1 GB for everything but weights (§5.2)."""

THINK_TIME = 1e-4
"""Seconds between an answer and the next request of a client that sends one at a time."""

BACK_OFF = 1e-3
"""Seconds after which a client of a closed loop repeats a refused request. Without a pause,
immediate refusals would cause immediate retries, and the run would consist of nothing else."""


@dataclass(frozen=True, slots=True)
class Clients:
    """A group of clients, counted together: open loops at `rate` r/s per model, or closed loops.

    `concurrency` is the number of a model's requests in flight in a closed loop. `slo` in seconds,
    None for the plan's.
    """

    group: str
    models: tuple[str, ...]
    rate: float = 0.0
    concurrency: int = 0
    slo: float | None = None


@dataclass(frozen=True, slots=True)
class FleetTrial:
    """A simulation; requests that end before `begin` are not counted. Seconds."""

    plan: FleetPlan
    clients: tuple[Clients, ...]
    begin: float
    end: float


def resnets(copies: int, prefix: str = "resnet50") -> Mapping[str, ModelCapabilities]:
    """Return copies of ResNet50 with the paper's measurements (Table 1)."""
    offer = next(iter(offers({"resnet50": 1}).values()))
    return {f"{prefix}-{i}": offer for i in range(copies)}


def simulate(trial: FleetTrial) -> dict[str, Counts]:
    """Run a trial; return its counts by group."""
    found = {c.group: Counts(trial.begin, trial.end) for c in trial.clients}
    by_model = {m: (c, found[c.group]) for c in trial.clients for m in c.models}

    def on_end(ended: Ended) -> None:
        clients, counts = by_model[ended.model]
        counts.add(ended)
        if not clients.rate:
            send_next(fleet, ended, clients.slo)

    fleet = Fleet(trial.plan, on_end=on_end)
    streams = count(1)
    for clients in trial.clients:
        for model in clients.models:
            for times in _times(clients, seed_of(trial.plan.seed, next(streams))):
                fleet.send(model, times, clients.slo)
    fleet.run(trial.end)
    return found


def send_next(fleet: Fleet, ended: Ended, slo: float | None = None) -> None:
    """Let a closed loop's client send its next request, after the end of the last."""
    pause = THINK_TIME if ended.reason is None else BACK_OFF
    fleet.send(ended.model, iter((ended.ended + pause,)), slo)


def _times(clients: Clients, stream: int) -> Iterator[Iterator[float]]:
    if clients.rate:
        yield poisson_rates(repeat(clients.rate), seed=stream)
        return
    draw = random.Random(stream)
    for _ in range(clients.concurrency):
        # Within a millisecond, or the first ones would arrive at one moment; then by `on_end`.
        yield iter((draw.uniform(0, 1e-3),))


def over_seeds(lab: Lab, trials: Mapping[K, FleetTrial]) -> dict[K, dict[str, Counts]]:
    """Return the counts of every trial, by its key, each of all the lab's seeds together."""
    results = lab.by_seed(
        simulate,
        list(trials.values()),
        lambda trial, seed: replace(trial, plan=replace(trial.plan, seed=seed)),
    )
    return {
        key: {group: Counts.of_runs([run[group] for run in found]) for group in found[0]}
        for key, found in zip(trials, results, strict=True)
    }


def milliseconds(seconds: float | None) -> float | None:
    """Return milliseconds for a table's cell."""
    return None if seconds is None else seconds * 1e3

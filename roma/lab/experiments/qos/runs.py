"""Runs one policy on one stretch of the day, and keeps the data of the paper's tables, figures."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dispatcher.schedulers.base import Scheduler
from dispatcher.state.utility import linear, value
from roma.config.policy_file import Policy
from roma.config.scheduling import QualityConfig
from roma.domain.events import Command, Event, Execute
from roma.lab.experiments.qos.setting import (
    HARD,
    MODEL,
    SOFT,
    TINY,
    VARIANTS,
    Part,
    Queries,
    plan,
    queries,
)
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Ended

KAPPA = {v.name: v.accuracy for v in VARIANTS}


@dataclass(frozen=True, slots=True)
class Trial:
    """A policy on some devices for some hours, or for the first `seconds` of them."""

    policy: type[Scheduler]
    options: QualityConfig
    kinds: tuple[str, ...]
    part: Part
    seed: int
    traces: Path | None = None
    seconds: int | None = None
    rate: float | None = None
    """Mean load instead of the part's own."""
    speed: int = 1
    learned: Policy | None = None

    @property
    def load(self) -> float:
        """The mean load, in queries per second."""
        return self.part.rate(self.kinds) if self.rate is None else self.rate

    def queries(self) -> Queries:
        """Draw its queries."""
        return queries(
            self.part,
            self.load,
            self.seed,
            traces=self.traces,
            seconds=self.seconds,
            speed=self.speed,
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """Outcomes of queries, in the order in which they ended.

    `sent` is when each was sent, `quality` is Q, 0 for unanswered ones; `late` the seconds from
    soft deadline to end; `is_tiny` is true if the simple variant answered.
    """

    quality: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    late: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    is_tiny: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    sent: "np.ndarray[tuple[int], np.dtype[np.float64]]"

    @property
    def mean(self) -> float:
        """Mean quality."""
        return float(self.quality.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation of the quality."""
        return float(self.quality.std())

    @property
    def tiny(self) -> float:
        """The share of queries that the simple variant answered."""
        return float(self.is_tiny.mean())


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A batch that was sent to a device: its time, number of queries and variant."""

    time: float
    count: int
    variant: str


def run(trial: Trial) -> Scores:
    """Simulate a trial."""
    return watch(trial)[0]


def watch(trial: Trial) -> tuple[Scores, list[Dispatch]]:
    """Simulate a trial; return every batch as well."""
    asked = trial.queries()
    ends: list[tuple[float, float, bool, float]] = []

    def on_end(ended: Ended) -> None:
        terms = ended.request.terms
        assert terms is not None
        assert terms.soft is not None
        worth = 0.0
        if ended.variant is not None:
            left = value(linear, ended.ended, terms.soft, ended.request.deadline)
            worth = KAPPA[ended.variant] * left
        late = ended.ended - terms.soft
        ends.append((worth, late, ended.variant == TINY.name, terms.soft - SOFT))

    fleet = Fleet(
        replace(plan(trial.policy, trial.kinds, trial.options, trial.seed), learned=trial.learned),
        on_end=on_end,
    )
    dispatches: list[Dispatch] = []

    def handle(event: Event, *, now: float) -> list[Command]:
        commands = fleet.dispatcher.handle(event, now=now)
        dispatches.extend(
            Dispatch(now, len(c.requests), c.variant) for c in commands if isinstance(c, Execute)
        )
        return commands

    fleet.handle = handle
    fleet.ask(MODEL, asked.arrivals())
    fleet.run(float(asked.arrived.max()) + 2 * HARD)
    found = np.array(ends)
    scores = Scores(found[:, 0], found[:, 1], found[:, 2].astype(bool), found[:, 3])
    return scores, dispatches

"""Training tasks: the paper's devices, on stretches of its training hours.

The paper splits 9hr to 12hr into jobs of ten minutes (§4.1). A job here is a random stretch, at 0.7
to 1.4 times the hours' mean load: the hours to be served are busier and quieter than these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dispatcher.schedulers.qos.learned import QosRl
from roma.config.policy_file import Policy, load
from roma.config.scheduling import QualityConfig
from roma.domain.errors import ConfigError
from roma.lab.experiments.qos.setting import MODEL, TUNED, Part, plan, queries
from roma.lab.learning.rollouts import Task
from roma.lab.sim.fleet_plan import Arrival

JOB: Final = 300
"""Seconds of a stretch, divided among the devices, so that the number of queries stays the same."""
SHORTEST: Final = 60
LEAST, MOST = 0.7, 1.4
FEWEST: Final = 20
"""Least mean number of queries of a stretch: one without any has no quality."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Queries of a stretch by seed."""

    part: Part
    rate: float
    seconds: int
    traces: Path | None

    def __call__(self, seed: int) -> list[Arrival]:
        """Draw the stretch's time and load, and its queries."""
        numbers = np.random.default_rng(seed)
        hours = self.seconds / 3600
        begin = numbers.uniform(self.part.begin, self.part.end - hours)
        rate = self.rate * numbers.uniform(LEAST, MOST)
        stretch = Part(begin, begin + hours, rate, rate)
        return list(queries(stretch, rate, seed, traces=self.traces).arrivals())


def task(
    kinds: Sequence[str], part: Part, traces: Path | None, *, rate: float | None = None
) -> Task:
    """Return a policy's training task for these devices; `rate` replaces the part's own.

    Raises ConfigError for a rate at which a stretch may have no query.
    """
    seconds = max(SHORTEST, JOB // len(kinds))
    least = FEWEST / (LEAST * seconds)
    if rate is not None and not rate >= least:
        raise ConfigError(
            f"rate = {rate:g}: must be ≥ {least:.2g} where devices learn from {seconds} s at a time"
        )
    jobs = Jobs(part, rate or part.rate(kinds), seconds, traces)
    # Its teacher is `qos` with the compared settings; for other devices, with its defaults.
    alpha, beta = TUNED.get(tuple(kinds), (QualityConfig().alpha, QualityConfig().beta))
    return Task(plan(QosRl, kinds, QualityConfig(alpha=alpha, beta=beta), 0), MODEL, jobs)


def learned(kinds: Sequence[str]) -> Policy:
    """Return the stored policy for one p2 or for the cluster; its file records its provenance."""
    name = "policy-single.json" if len(kinds) == 1 else "policy-cluster.json"
    return load(Path(__file__).with_name(name))

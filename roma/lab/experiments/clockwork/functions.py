"""The load of a fleet: 4,026 models under the invocations of some 42,000 functions (§6.5).

The paper replays six hours of the Azure Functions trace of 2019, ten or eleven functions per model.
Built in is a fleet of that shape: popularity is lognormal, so that the first fifth of the functions
has nearly all invocations, and a function is one of four kinds that the paper names: sustained,
cold, fluctuating, or with spikes every 5, 15 or 60 minutes. A second of the run stands for a minute
of the trace, at the trace's rate. With a directory of recorded traces, the shapes come from the
functions of its sample of the Azure trace of 2021 instead of the four kinds.
"""

import csv
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import NormalDist
from typing import Final

from roma.domain.errors import ConfigError, in_words
from roma.lab.sim.scenario import seed_of
from roma.workload.arrivals import poisson_rates

PER_MODEL: Final = (10, 11)
"""Functions per model, alternating."""

SIGMA: Final = 2.6
"""Standard deviation of the logarithm of a function's rate."""

RECORDED: Final = "azure_functions_2021_200.csv"

MINUTE: Final = 60.0
"""Seconds of a minute."""

SPIKE: Final = 4.0
"""Largest rate of a periodic function in the second of its spike, as a multiple of its mean."""

Shape = Callable[[int], float]
"""Second of the run -> rate, as a multiple of the mean."""


def sends(
    models: Sequence[str], rate: float, *, seed: int, traces: Path | None
) -> Iterator[tuple[str, Iterator[float]]]:
    """Yield each model with its send times; `rate` is the mean of all together, in r/s."""
    draw = random.Random(seed)
    recorded = None if traces is None else _recorded(traces / RECORDED)
    counts = [PER_MODEL[i % len(PER_MODEL)] for i in range(len(models))]
    rates = _rates(sum(counts), rate, draw)
    for i, (model, functions) in enumerate(zip(models, counts, strict=True)):
        own = [
            (next(rates), _shape(draw) if recorded is None else _shifted(recorded, draw))
            for _ in range(functions)
        ]
        yield model, poisson_rates(_total(own), seed=seed_of(seed, i))


def _total(functions: Sequence[tuple[float, Shape]]) -> Iterator[float]:
    return (sum(rate * shape(second) for rate, shape in functions) for second in count())


def _rates(functions: int, total: float, draw: random.Random) -> Iterator[float]:
    """Return one mean rate per function in random order: the quantiles of a lognormal.

    Quantiles instead of draws: with a tail this heavy the most popular one would dominate the run.
    """
    normal = NormalDist(sigma=SIGMA)
    weights = [math.exp(normal.inv_cdf((i + 0.5) / functions)) for i in range(functions)]
    scale = total / sum(weights)
    draw.shuffle(weights)
    return iter([weight * scale for weight in weights])


def _shape(draw: random.Random) -> Shape:
    kind, phase = draw.random(), draw.random()
    if kind < 0.5:
        return lambda _: 1.0  # sustained, or cold: its rate makes the difference
    if kind < 0.8:
        period = draw.uniform(20, 120)
        return lambda second: 1 + 0.8 * math.sin(2 * math.pi * (second / period + phase))
    period = draw.choice((5, 15, 60))
    height = min(SPIKE, period)
    rest = (period - height) / (period - 1)
    return lambda second: height if second % period == 0 else rest


def _shifted(recorded: Sequence[Sequence[float]], draw: random.Random) -> Shape:
    shape = draw.choice(recorded)
    offset = draw.randrange(len(shape))
    return lambda second: shape[(second + offset) % len(shape)]


def _recorded(path: Path) -> list[list[float]]:
    """Return each recorded function's invocations per minute, as multiples of their mean."""
    counts: dict[str, Counter[int]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                began = float(row["end_timestamp"]) - float(row["duration"])
                counts.setdefault(row["func"], Counter())[int(began // MINUTE)] += 1
    except KeyError as error:
        raise ConfigError(f"--traces: {path}: no column {error}") from error
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"--traces: {path}: cannot be read: {in_words(error)}") from error
    if not counts:
        raise ConfigError(f"--traces: {path}: holds 0 invocations; must be at least 1")
    minutes = 1 + max(max(c) for c in counts.values())
    return [[c[m] * minutes / c.total() for m in range(minutes)] for c in counts.values()]

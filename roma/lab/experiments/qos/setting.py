"""The paper's setting (Fang et al., CIKM 2017, §4.1): devices, variants, deadlines, a day of load.

What the paper does not give is chosen here, and the notes of the tables say so:

    load      SogouQ's queries of a day are no longer public. The shape of the day is that of
              Autothrottle's diurnal trace, turned so that its peak is at 16:30; without traces, a
              sine. Each three hours are scaled so that `fixed` scores what it scored in the paper
              (`roma.lab.experiments.qos.fit`): then the load is as hard for a device as theirs was.
              The cluster gets eight times that, as theirs did.
    seconds   vary by a gamma factor of this spread (`BURSTS`), independently; within a second
              queries come at random.
    network   a Pareto delay with a mean of 50 ms, as of LTE.
    noise     a normal factor on each batch, with a deviation of 3 %.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dispatcher.schedulers.base import Scheduler
from roma.config.scheduling import QualityConfig
from roma.domain.actions import ModelCapabilities
from roma.domain.variants import RequestOptions, Variant
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet_plan import Arrival, FleetPlan
from roma.workload.recorded import TraceWindow, rates

MODEL: Final = "yolo"
FULL, TINY = Variant("full", 1.0), Variant("tiny", 0.5)
VARIANTS: Final = (FULL, TINY)
SOFT, HARD = 1.0, 2.0
"""Seconds after a query is sent."""

SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
THROUGHPUTS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "g2": {
        "tiny": (25.6, 35.7, 51.9, 66.1, 73.7, 84.7, 91.2),
        "full": (9.4, 9.4, 12.3, 14.7, 16.0, 16.8),
    },
    "p2": {
        "tiny": (23.8, 35.7, 63.5, 90.9, 109.6, 131.1, 141.9),
        "full": (14.5, 18.9, 24.2, 28.4, 31.5, 33.9, 34.6),
    },
}
"""Table 1: queries per second by batch size; g2 has no memory for 64 by the full model."""

SINGLE: Final = ("p2",)
CLUSTER: Final = ("g2",) * 5 + ("p2",) * 5

SPEEDS: Final = {SINGLE: 1, CLUSTER: 6}
"""Speed-up of the day: ten devices get as much load in half an hour as one in four hours."""

DELAY, TAIL = 0.03, 2.5
"""Least upstream delay in seconds, and the Pareto distribution's exponent: a mean of 50 ms."""

BURSTS: Final = 0.5
"""Coefficient of variation of a second's rate."""

SPREAD: Final = 0.03
STEP: Final = 24
"""Seconds of the day that a second of the recorded hour stands for."""
PEAK_HOUR: Final = 16.5
START: Final = 1.0
"""Time of the first query, in seconds: devices are ready by then."""


SCALE: Final = 8
"""The cluster's load as a multiple of the single device's (§4.2)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some hours of the day: `single` is the mean load of one device, in queries per second.

    `busy` is the load under which `fixed` does as badly on the cluster as in the paper.
    """

    begin: float
    end: float
    single: float
    busy: float

    @property
    def name(self) -> str:
        """The name in the paper's tables."""
        return f"{self.begin:g}-{self.end:g}hr"

    def rate(self, kinds: Sequence[str]) -> float:
        """Return the mean load of a set of devices."""
        return self.single if len(kinds) == 1 else SCALE * self.single


TRAINING: Final = Part(9, 12, 22.5, 247.0)
TESTS: Final = (
    Part(12, 15, 21.23, 230.3),
    Part(15, 18, 24.54, 276.5),
    Part(18, 21, 22.16, 246.2),
    Part(21, 24, 22.23, 237.0),
)
"""The results of `fit loads`; the training hours are as busy as these on average."""

TUNED: Final[Mapping[tuple[str, ...], tuple[float, float]]] = {
    SINGLE: (0.0, 0.5),
    CLUSTER: (0.0, 1.0),
}
"""α and β of `qos`: the best of `fit`'s grid on the training hours, as in the paper."""


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries in the order in which they arrive: when they were sent, and when they arrive."""

    sent: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    arrived: "np.ndarray[tuple[int], np.dtype[np.float64]]"

    def __len__(self) -> int:
        return len(self.sent)

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the arrivals for the fleet; a query's time on the way counts."""
        for sent, arrived in zip(self.sent.tolist(), self.arrived.tolist(), strict=True):
            yield Arrival(arrived, sent + HARD, RequestOptions(soft=sent + SOFT))


def offer(kind: str) -> dict[str, ModelCapabilities]:
    """Return the capabilities of a device of Table 1, with the table's batch sizes."""
    return {
        name: ModelCapabilities(1, 1e-3, {b: b / q for b, q in zip(SIZES, found, strict=False)})
        for name, found in THROUGHPUTS[kind].items()
    }


def day(traces: Path | None) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the shape of a day, one value per `STEP` seconds, with its peak at `PEAK_HOUR`."""
    count = 24 * 3600 // STEP
    if traces is None:
        shape = 1 - 0.35 * np.cos(2 * math.pi * np.arange(count) / count)
    else:
        shape = np.array(rates("diurnal", traces, TraceWindow(count)))
    smooth = np.convolve(shape, np.ones(151) / 151, "same")
    return np.roll(shape, round(PEAK_HOUR * 3600 / STEP) - int(smooth.argmax()))


def queries(
    part: Part,
    rate: float,
    seed: int,
    *,
    traces: Path | None = None,
    seconds: int | None = None,
    speed: int = 1,
) -> Queries:
    """Draw the queries of a part of the day, or of its first `seconds`; `rate` is the part's.

    `speed` compresses the part's time by this factor: its shape stays the same.
    """
    numbers = np.random.default_rng([seed, round(part.begin)])
    length = round((part.end - part.begin) * 3600 / speed)
    times = np.arange(length) * speed + round(part.begin * 3600)
    shape = day(traces)[times // STEP]
    mean = rate * shape / shape.mean() * numbers.gamma(BURSTS**-2, BURSTS**2, length)
    counts = numbers.poisson(mean[:seconds])
    sent = np.repeat(np.arange(len(counts)), counts) + numbers.random(counts.sum()) + START
    arrived = sent + DELAY * (1 + numbers.pareto(TAIL, len(sent)))
    order = np.argsort(arrived, kind="stable")
    return Queries(sent[order], arrived[order])


def plan(
    policy: type[Scheduler], kinds: Sequence[str], options: QualityConfig, seed: int
) -> FleetPlan:
    """Return a plan of devices that take actions, with every variant loaded from the start on."""
    return FleetPlan(
        models=offer(kinds[0]),
        devices=len(kinds),
        pages=len(VARIANTS),
        deadline=HARD,
        soft=SOFT,
        policy=policy,
        latency=0.0,
        noise=Noise(SPREAD, 0.0, 0.0, is_normal=True),
        seed=seed,
        kinds=[offer(kind) for kind in kinds],
        variants={MODEL: VARIANTS},
        quality=options,
    )

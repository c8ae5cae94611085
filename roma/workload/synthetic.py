"""Synthetic loads in the shape of recorded ones: seeded, streamed, no trace needed.

Each generator yields one rate (req/s) per second; `arrivals.poisson_rates` turns the rates into
send times. The mean over the run is exactly the rate asked for: a first pass with the same seed
finds the factor, so no rates are stored. Equal arguments yield equal rates.

The shapes are modelled on these traces (an hour of each; `peak`, `least` and the standard deviation
`cv` are shares of the mean; `r60` is the autocorrelation at 60 s; a step is the mean change from
second to second; sources in `roma.workload.recorded`):

    trace                mean    peak  least  cv    r1    r60   r300  step
    Autothrottle diurnal 262.6/s  1.47  0.67  0.24  1.00  0.98  0.82  0.4 %
    Autothrottle bursty  163.3/s  2.43  0.50  0.51  1.00  0.97  0.51  0.6 %

The bursty trace has a single burst at three times the surrounding rate, over a fifth of the hour,
with flanks of a few minutes.
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice

from roma.workload.errors import WorkloadError

Shape = Callable[[random.Random], Iterator[float]]
"""A function from a random generator to an endless stream of relative rates, one per second."""


def diurnal(
    rate: float,
    seconds: int,
    *,
    seed: int,
    periods: float = 1.0,
    swing: float = 2.2,
    noise: float = 0.02,
    memory: float = 30.0,
) -> Iterator[float]:
    """Yield days of `seconds / periods` s, each from night to night; `swing` is peak over trough.

    `noise` is the deviation around the curve, as a share, and `memory` its correlation time in s.
    """
    _at_least("periods", periods, 0.0)
    _at_least("swing", swing, 1.0)
    depth = math.log(swing) / 2

    def shape(draw: random.Random) -> Iterator[float]:
        for second, factor in enumerate(_wander(draw, noise, memory)):
            phase = 2 * math.pi * periods * (second + 0.5) / seconds
            yield factor * math.exp(-depth * math.cos(phase))

    return _scaled(shape, rate, seconds, f"diurnal {seed}")


def bursty(
    rate: float,
    seconds: int,
    *,
    seed: int,
    height: float = 3.0,
    share: float = 0.2,
    length: float = 60.0,
    tail: float = 1.5,
    ramp: float = 10.0,
    noise: float = 0.1,
    memory: float = 60.0,
) -> Iterator[float]:
    """Yield bursts of `height` times the base, for about `share` of the time.

    Their lengths are Pareto-distributed with mean `length` s and index `tail` (a smaller index is
    heavier; cut at half the run); their flanks have the time constant `ramp` s. The first burst
    begins within one mean quiet time, so that short runs contain one.
    """
    _at_least("height", height, 1.0)
    _at_least("length", length, 1.0)
    _at_least("ramp", ramp, 1.0)
    if not 0 < share < 1:
        raise WorkloadError(f"share = {share:g}: must be in (0, 1)")
    if not tail > 1:
        raise WorkloadError(f"tail = {tail:g}: must be > 1, or there is no mean length")
    quiet = length * (1 - share) / share
    shortest = length * (tail - 1) / tail

    def lengths(draw: random.Random) -> Iterator[float]:
        yield draw.uniform(0, min(quiet, seconds / 2))
        while True:
            yield min(shortest * draw.paretovariate(tail), seconds / 2)
            yield draw.expovariate(1 / quiet)

    def shape(draw: random.Random) -> Iterator[float]:
        level = 1.0
        for burst, factor in zip(
            _alternating(lengths(draw)), _wander(draw, noise, memory), strict=False
        ):
            level += ((height if burst else 1.0) - level) / ramp
            yield level * factor

    return _scaled(shape, rate, seconds, f"bursty {seed}")


def noisy(
    rate: float, seconds: int, *, seed: int, noise: float = 0.3, memory: float = 5.0
) -> Iterator[float]:
    """Yield a steady load under lognormal noise: deviation `noise`, correlated over `memory` s."""

    def shape(draw: random.Random) -> Iterator[float]:
        return _wander(draw, noise, memory)

    return _scaled(shape, rate, seconds, f"noisy {seed}")


def _scaled(shape: Shape, rate: float, seconds: int, seed: str) -> Iterator[float]:
    """Yield the shape scaled to the mean `rate`; text as seed makes shapes independent."""
    _at_least("rate", rate, 0.0)
    _at_least("seconds", seconds, 1)

    def run() -> Iterator[float]:
        return islice(shape(random.Random(seed)), seconds)

    total = math.fsum(run())
    factor = rate * seconds / total if total else 0.0
    return (factor * value for value in run())


def _wander(draw: random.Random, noise: float, memory: float) -> Iterator[float]:
    """Yield a lognormal AR(1) process: median 1, deviation `noise`, correlation time `memory`."""
    _at_least("noise", noise, 0.0)
    _at_least("memory", memory, 0.0)
    sigma = math.sqrt(math.log1p(noise**2))
    keep = math.exp(-1 / memory) if memory else 0.0
    fresh = sigma * math.sqrt(1 - keep**2)
    x = draw.gauss(0, sigma)
    while True:
        yield math.exp(x)
        x = keep * x + draw.gauss(0, fresh)


def _alternating(lengths: Iterator[float]) -> Iterator[bool]:
    """Yield, per second, whether the state is on; `lengths` in s alternate, beginning with off."""
    on, left = False, 0.0
    for length in lengths:
        left += length
        while left >= 1:
            yield on
            left -= 1
        on = not on


def _at_least(name: str, value: float, bound: float) -> None:
    if not (math.isfinite(value) and value >= bound):
        raise WorkloadError(f"{name} = {value:g}: must be finite and >= {bound:g}")

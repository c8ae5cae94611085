"""The plant of the paper (§4, eq. 3-8): from cores to response time, around an operating point.

    l' = ri - ro      ro = μC·uC + μG·uG      τ = l/ro                                   (eq. 4)

Linearised in r̄o, τ̄, with the minus sign that the paper's eq. 6 lost: more cores mean less time.

    Δτ/ΔuC (s) = -(μC/r̄o)·(1 + s·τ̄)/s       Δτ/ΔuG (s) = -(μG/r̄o)·(1 + s·τ̄)/s

Sampled with period T both become k·(z - b)/(z - 1) with k < 0 in s/core; the stored eq. 8 lost b.
Units: cores, seconds, requests per second; u_G counts GPUs.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import control

from controllers.error import ErrorForm
from roma.domain.errors import ConfigError


class Sampling(StrEnum):
    """Meaning of a sample of the response time; it determines b."""

    BACKWARD = "backward"
    """Backward Euler. With one step of dead time it is the value just before the quota moves."""
    MEAN = "mean"
    """The mean of the window in which u is in force (exactly Tustin's rule): what ROMA measures."""
    ZOH = "zoh"
    """Zero-order hold: the value just after the quota moved."""


METHODS = {Sampling.BACKWARD: "backward_diff", Sampling.MEAN: "tustin", Sampling.ZOH: "zoh"}
"""python-control's names."""


LARGEST = 1e6
"""Largest value of an operating point; from about 1e14 on a sampled plant loses its zero."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The point at which the queue is linearised. The defaults are the paper's Skylines (Table 1).

    `throughput` r̄o in req/s: the mean of its workload. `response_time` τ̄ in s: α·SLA, 0.8 × 0.38.
    `per_core` μC in req/s per core and `per_gpu` μG in req/s per GPU: the paper prints neither; 0.1
    core-seconds per request is assumed. `period` T in s.
    """

    throughput: float = 35.0
    response_time: float = 0.304
    per_core: float = 10.0
    per_gpu: float = 10.0
    period: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 1 / LARGEST <= value <= LARGEST:
                bound = f"must be from {1 / LARGEST:g} to {LARGEST:g}"
                raise ConfigError(f"{field.name} = {value}: {bound}")

    @property
    def cores(self) -> float:
        """ū_C without a GPU: the cores at which departures balance arrivals."""
        return self.throughput / self.per_core

    @property
    def queue(self) -> float:
        """l̄: requests waiting or running, by Little's law."""
        return self.throughput * self.response_time


@dataclass(frozen=True, slots=True)
class Plant:
    """k·(z - b)/(z - 1): k in s/core (negative: more cores, less time), b the zero, T in s."""

    k: float
    b: float
    period: float = 1.0

    def transfer_function(self, dead_time: int = 0) -> Any:
        """Return it as a python-control transfer function with `dead_time` more periods."""
        numerator = [self.k, -self.k * self.b]
        return control.tf(numerator, [1, -1] + [0] * dead_time, self.period)


def continuous(point: OperatingPoint) -> Any:
    """Return eq. 6 with its sign, for cores."""
    gain = point.per_core / point.throughput
    return control.tf([-gain * point.response_time, -gain], [1, 0])


def sampled(point: OperatingPoint, sampling: Sampling) -> Plant:
    """Return eq. 8 with its b, as python-control samples eq. 6."""
    discrete = control.sample_system(continuous(point), point.period, method=METHODS[sampling])
    first, second = discrete.num[0][0]
    return Plant(float(first), float(-second / first), point.period)


def error_slope(form: ErrorForm, set_point: float, cost: float) -> float:
    """Return de/dτ at the set point, in units of `form` per second.

    A gain in cores per second, divided by it, is production's K: normalising the error by the set
    point multiplies K by it. `cost` in core-s counts for `inverse` alone.
    """
    return cost / set_point**2 if form is ErrorForm.INVERSE else 1 / set_point


def main(point: OperatingPoint) -> dict[Sampling, Plant]:
    """Return the plant in all three discretisations."""
    return {sampling: sampled(point, sampling) for sampling in Sampling}

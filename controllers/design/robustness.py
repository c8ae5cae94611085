"""Robustness of a loop: poles, margins, sensitivity and gain spread with 0-3 periods of dead time.

Poles decide. Margins that python-control computes from polynomials in z are not trusted here: both
integrators sit at z = 1, and it reports a phase crossing next to it (gain margins of 1e-10 for a
stable loop). The gain spread is found from poles, the rest on a grid of frequencies.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import control
import numpy as np

from controllers import registry
from controllers.design.plant import Plant, error_slope

DEAD_TIMES = (0, 1, 2, 3)
"""Periods between a quota and the measurement that shows it, beyond the sampled plant. One is
always there: a window is known when it ends. More come from longer windows and slow actuators."""

SPREAD = np.logspace(-4, 4, 801)
"""Factors of plant gain to try: 2 % apart, refined by bisection."""

FREQUENCIES = 4000


@dataclass(frozen=True, slots=True)
class Controller:
    """Eq. 11, K·(z - a)/(z - 1), on e = τ - R° in seconds: K in cores/s."""

    K: float
    a: float

    def open_loop(self, plant: Plant, dead_time: int) -> Any:
        """Return L(z). The error is τ - R°, so that the feedback is negative with |k|."""
        law = control.tf([self.K, -self.K * self.a], [1, -1], plant.period)
        return -law * plant.transfer_function(dead_time)


PAPER: dict[str, float | str] = {"error": "rt", "K": 0.15, "a": 0.11}
"""The paper's hand-tuned gains (§5) as production's `pi` takes them, on a normalised error."""


def from_gains(
    gains: Mapping[str, float | str], set_point: float, period: float, cost: float = 0.1
) -> Controller:
    """Return production's `pi` with these gains as the linear loop sees it at a set point in s.

    Raises `ConfigError` for gains that production refuses. `cost` is in core-s, for `inverse`.
    """
    full = registry.checked_gains("pi", gains)
    slope = error_slope(full.error, set_point, cost)
    # Production scales the integral with the measured period: K·(1 - a)·e·dt.
    return Controller(full.K * slope, 1 - (1 - full.a) * period)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A loop with one dead time. Margins are None where the loop is unstable.

    `spread` is the interval of factors on the plant's gain within which the loop stays stable;
    `phase_margin` is in degrees at `crossover` rad/s; `peak` is Ms, the largest |1/(1 + L)|.
    """

    dead_time: int
    poles: tuple[complex, ...]
    spread: tuple[float, float] | None
    phase_margin: float | None
    crossover: float | None
    peak: float | None

    @property
    def radius(self) -> float:
        """The largest pole magnitude."""
        return max(abs(pole) for pole in self.poles)

    @property
    def stable(self) -> bool:
        """True if every pole lies inside the unit circle."""
        return self.radius < 1


def judge(controller: Controller, plant: Plant, dead_time: int) -> Verdict:
    """Return the verdict on the loop of a controller and a plant."""
    loop = controller.open_loop(plant, dead_time)
    poles = tuple(complex(p) for p in control.feedback(loop, 1).poles())
    if max(abs(p) for p in poles) >= 1:
        return Verdict(dead_time, poles, None, None, None, None)
    omega, response = frequency_response(loop)
    # The phase margin is the smallest angle to -1 over all crossings of |L| = 1.
    crossings = np.flatnonzero(np.diff(np.sign(np.abs(response) - 1)))
    angles = np.abs(np.degrees(np.angle(-response[crossings])))
    margin, crossover = None, None
    if crossings.size:
        worst = int(np.argmin(angles))
        margin, crossover = float(angles[worst]), float(omega[crossings[worst]])
    peak = float(np.max(1 / np.abs(1 + response)))
    return Verdict(dead_time, poles, gain_spread(loop), margin, crossover, peak)


def frequency_response(loop: Any) -> tuple[Any, Any]:
    """Return ω in rad/s up to Nyquist's π/T, and L(e^{jωT})."""
    nyquist = math.pi / loop.dt
    omega = np.geomspace(1e-3 * nyquist, nyquist, FREQUENCIES)
    return omega, loop(np.exp(1j * omega * loop.dt))


def radius(loop: Any, factor: float) -> float:
    """Return the largest closed-loop pole magnitude with the plant's gain times `factor`."""
    characteristic = np.polyadd(loop.den[0][0], factor * loop.num[0][0])
    return float(np.max(np.abs(np.roots(characteristic))))


def gain_spread(loop: Any) -> tuple[float, float]:
    """Return the factors on the gain, around 1, between which a stable loop stays stable."""
    unstable = [f for f in SPREAD if radius(loop, f) >= 1]
    below = max((f for f in unstable if f < 1), default=None)
    above = min((f for f in unstable if f > 1), default=None)
    lower = 0.0 if below is None else _edge(loop, bad=below, good=1.0)
    return lower, math.inf if above is None else _edge(loop, bad=above, good=1.0)


def _edge(loop: Any, *, bad: float, good: float) -> float:
    # 40 halvings: far more precision than needed, in bounded time.
    for _ in range(40):
        middle = math.sqrt(bad * good)
        bad, good = (bad, middle) if radius(loop, middle) < 1 else (middle, good)
    return good


def small_gain_lead(a: float, b: float, dead_time: int) -> float:
    """Return 1/(1-a) + 1/(1-b) - n - 1 in periods; below 0 *every* small gain is unstable.

    Two integrators start at z = 1, and their pair of poles leaves along the unit circle; the
    zeros pull it inwards, each period of dead time and the curvature of the circle outwards.
    """
    return 1 / (1 - a) + 1 / (1 - b) - dead_time - 1


def main(controller: Controller, plant: Plant) -> list[Verdict]:
    """Return the verdicts for every dead time."""
    return [judge(controller, plant, n) for n in DEAD_TIMES]

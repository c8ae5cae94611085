"""Fit the demands of one worker to its capacity AC = MC - GC.

    η = AC / Σu;   η = 1: u' = u;   η > 1: u' = u·(1 + γ·(η - 1))          (paper, Algorithm 2)

In a shortage (η < 1) every executable keeps a minimum. One that serves nobody yet has only that,
and what the others leave. Among the rest there are two rules:

* `max_min`: u' = min(u, w·L), with the level L that uses up the capacity. A demand below the fair
  share is met in full, whatever its neighbours ask for.
* `proportional`, the paper's: u' = η·u, after each has its floor (the cores with which one request
  meets the set point). With minimum = floor = 0 it is Algorithm 2 to the letter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roma.domain.model import Sharing

GRID = 0.001
"""Cores. Allocations are rounded down to it; finer differences are noise."""

ROUNDING = 1e-9
"""Cores. Undoes binary representation only: 0.3 must not become 0.299."""


@dataclass(slots=True)  # as `controllers.measurement.Measurement`
class CoreRequest:
    """Demand of an executable, in cores; minimum ≤ demand ≤ maximum.

    `loads`: it serves nobody yet, and can wait. `weight` is its weight relative to the others'.
    """

    demand: float
    minimum: float = 0.0
    floor: float = 0.0
    maximum: float = math.inf
    loads: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """Allocations in cores, in the order of the requests; Σ granted ≤ capacity.

    `total` is the sum of all demands; `unrounded` are the shares before rounding down.
    """

    eta: float
    granted: tuple[float, ...]
    total: float
    unrounded: tuple[float, ...]


def share(
    wants: Sequence[CoreRequest],
    capacity: float,
    gamma: float = 0.0,
    *,
    sharing: Sharing = Sharing.MAX_MIN,
) -> Share:
    """Return the feasible allocation; `capacity` in cores, γ in [0, 1]."""
    total = sum(w.demand for w in wants)
    eta = capacity / total if total > 0 else math.inf
    if eta < 1:
        ration = _max_min if sharing is Sharing.MAX_MIN else _proportional
        granted = ration(wants, capacity)
    elif math.isinf(eta):
        granted = [w.demand for w in wants]
    else:
        granted = [min(w.maximum, w.demand * (1 + gamma * (eta - 1))) for w in wants]
    rounded = tuple(_round_down(g, w) for g, w in zip(granted, wants, strict=True))
    return Share(eta, rounded, total, tuple(granted))


def _max_min(wants: Sequence[CoreRequest], capacity: float) -> list[float]:
    """Serve minima, then demands, last those of loading executables; in each the smallest first."""
    weights = [w.weight for w in wants]
    granted = [0.0] * len(wants)
    for tier in (
        [w.minimum for w in wants],
        [w.minimum if w.loads else w.demand for w in wants],
        [w.demand for w in wants],
    ):
        if sum(tier) > capacity + ROUNDING:
            level = _level(granted, tier, weights, capacity)
            return [
                max(low, min(high, level * weight))
                for low, high, weight in zip(granted, tier, weights, strict=True)
            ]
        granted = tier
    return granted


def _level(
    lower: Sequence[float], upper: Sequence[float], weights: Sequence[float], capacity: float
) -> float:
    """Return the L with Σ max(lower, min(upper, w·L)) = capacity, which is less than Σ upper."""
    breakpoints = [(low / w, w) for low, w in zip(lower, weights, strict=True)]
    breakpoints += [(high / w, -w) for high, w in zip(upper, weights, strict=True)]
    used, slope, level = sum(lower), 0.0, 0.0
    for point, change in sorted(breakpoints):
        more = used + slope * (point - level)
        if more > capacity:
            return level + (max(0.0, capacity - used) / slope if slope > 0 else 0.0)
        used, slope, level = more, slope + change, point
    return math.inf


def _proportional(wants: Sequence[CoreRequest], capacity: float) -> list[float]:
    """Serve minima, then floors, then demands, last those of loading executables.

    The first tier that does not fit is scaled.
    """
    granted = [0.0] * len(wants)
    for tier in (
        [w.minimum for w in wants],
        [w.minimum if w.loads else min(max(w.floor, w.minimum), w.demand) for w in wants],
        [w.minimum if w.loads else w.demand for w in wants],
        [w.demand for w in wants],
    ):
        missing = [max(0.0, t - g) for t, g in zip(tier, granted, strict=True)]
        left = max(0.0, capacity - sum(granted))
        total = sum(missing)
        scale = min(1.0, left / total) if total > 0 else 0.0
        granted = [g + scale * m for g, m in zip(granted, missing, strict=True)]
    return granted


def _round_down(granted: float, want: CoreRequest) -> float:
    """Round to the grid, never above `granted` and never below a kept minimum."""
    rounded = math.floor(granted / GRID + ROUNDING) * GRID
    rounded = min(rounded, granted)
    return max(rounded, want.minimum) if granted >= want.minimum else rounded

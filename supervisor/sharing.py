"""The paper's Algorithm 2, restored: fit the demands of one worker to its capacity AC = MC - GC.

    η = AC / Σu;   η < 1: u' = η·u;   η = 1: u' = u;   η > 1: u' = u·(1 + γ·(η - 1))

Before demands are scaled down, each executable keeps its minimum, then its floor (the cores one
request needs to meet the set point), so that a shortage slows models down instead of starving the
small ones. What serves nobody yet has its minimum, and beyond it what the others leave. With
minimum = floor = 0 and everyone serving the shortage case is exactly η·u.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

GRID = 0.001
"""Cores. Allocations are rounded down to it; finer differences are noise."""


@dataclass(frozen=True, slots=True)
class Want:
    """What one executable asks for, in cores; minimum ≤ demand ≤ maximum.

    `loads`: it serves nobody yet, and can wait.
    """

    demand: float
    minimum: float = 0.0
    floor: float = 0.0
    maximum: float = math.inf
    loads: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What everyone gets, in cores and in the order of the wants; Σ granted ≤ capacity.

    `total` is what all demand; `exact` what everyone's share is before it is rounded down.
    """

    eta: float
    granted: tuple[float, ...]
    total: float
    exact: tuple[float, ...]


def share(wants: Sequence[Want], capacity: float, gamma: float = 0.0) -> Share:
    """Return the feasible allocation; `capacity` in cores, γ in [0, 1]."""
    total = sum(w.demand for w in wants)
    eta = capacity / total if total > 0 else math.inf
    if eta < 1:
        granted = _ration(wants, capacity)
    elif math.isinf(eta):
        granted = [w.demand for w in wants]
    else:
        granted = [min(w.maximum, w.demand * (1 + gamma * (eta - 1))) for w in wants]
    rounded = tuple(_round_down(g, w) for g, w in zip(granted, wants, strict=True))
    return Share(eta, rounded, total, tuple(granted))


def _ration(wants: Sequence[Want], capacity: float) -> list[float]:
    """Serve minima, then floors, then demands, last of those that load.

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


def _round_down(granted: float, want: Want) -> float:
    """Round to the grid without ever exceeding `granted`, nor falling below a kept minimum."""
    # 1e-9 undoes binary representation only: 0.3 must not become 0.299.
    rounded = math.floor(granted / GRID + 1e-9) * GRID
    rounded = min(rounded, granted)
    return max(rounded, want.minimum) if granted >= want.minimum else rounded

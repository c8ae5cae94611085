"""What a backlog is worth: the solution of a small semi-Markov decision process.

State: how many requests wait, x, the oldest for x/R seconds, as when R requests come per second.
A decision runs c of them by one variant, which takes D seconds and is worth the sum of κ·V at
their ages; or it waits for the next one; or it refuses the oldest. The next decision is ξD later,
if the device is the ξ-th part of all there are: one of the others is free then. Until then x
becomes x - c + R·ξD, more or less by what arrivals vary. The solution is the greatest mean quality
per second, ρ, and the relative value h(x) of a backlog: what it makes, or costs, compared with
none. It is found by policy iteration (Howard), exactly for the grid, once per kind of device,
model and rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dispatcher.quality import Utility, value

POINTS: Final = 64
"""Of the backlog's grid; a backlog whose oldest request is worthless by now is the last one."""

RATES: Final = 40
"""Of the arrival rate's grid, geometric from `SLOWEST` to `FASTEST` times the capacity."""
SLOWEST: Final = 0.02
FASTEST: Final = 2.0

MARGIN: Final = 0.1
"""Share of the soft deadline by which both are taken to be earlier: requests have been on their way
for a while, and batches take longer now and then."""

BURSTS: Final = 0.6
"""Coefficient of variation of what comes during a batch, beyond that of a Poisson process."""

ROUNDS: Final = 30
"""Of policy iteration, at most: it ends by itself, after five to ten."""

LEAK: Final = 1e-6
"""Probability with which everything that waits is gone: whatever is chosen, all backlogs then lead
to one another, without which the equations might have no solution."""

FINE: Final = 512
"""Steps of the integral of V over the ages."""

SHED: Final = 0.25
"""Share of a backlog that is refused at once, the oldest."""


@dataclass(frozen=True, slots=True)
class Action:
    """A batch of `count` by a variant of accuracy `accuracy` that takes `seconds`."""

    count: int
    accuracy: float
    seconds: float


class Values:
    """ρ and h on a grid of rates, for a device that is the part `share` of all, ξ."""

    def __init__(
        self,
        actions: Sequence[Action],
        utility: Utility,
        *,
        soft: float,
        hard: float,
        share: float = 1.0,
    ) -> None:
        margin = MARGIN * soft
        capacity = max(a.count / a.seconds for a in actions) / share
        self._first = SLOWEST * capacity
        self._log = math.log(FASTEST / SLOWEST) / (RATES - 1)
        self._solver = _Solver(
            actions, utility, soft=soft - margin, hard=hard - margin, share=share
        )
        self._hard = hard
        self._largest = float(max(a.count for a in actions))
        self._worths: dict[int, Worth] = {}
        """By place on the grid: solved when first asked for, as all at once would take 0.1 s, in
        which a gateway answers nobody."""

    def at(self, rate: float) -> "Worth":
        """Return the values at a rate, of the nearest one of the grid."""
        place = round(math.log(max(rate, self._first) / self._first) / self._log)
        place = min(place, RATES - 1)
        known = self._worths.get(place)
        if known is None:
            rate = self._first * math.exp(place * self._log)
            known = self._solver.solve(rate, max(rate * self._hard, self._largest))
            self._worths[place] = known
        return known


class Worth:
    """Values at one rate, `rate`: `gain` is ρ, quality per second.

    The grid's points are close where little waits: x grows with the square of their number.
    """

    __slots__ = ("_grid", "_most", "_values", "gain", "rate")

    def __init__(self, rate: float, gain: float, grid: list[float], values: list[float]) -> None:
        self.rate = rate
        self.gain = gain
        self._grid = grid
        self._values = values
        self._most = grid[-1]

    def of(self, backlog: float) -> float:
        """Return h of a backlog, on the line between the grid's points."""
        if backlog <= 0.0:
            return self._values[0]
        if backlog >= self._most:
            return self._values[-1]
        i = int((POINTS - 1) * math.sqrt(backlog / self._most))
        low, high = self._grid[i], self._grid[i + 1]
        before, after = self._values[i], self._values[i + 1]
        return before + (after - before) * (backlog - low) / (high - low)

    def expected(self, backlog: float, coming: float) -> float:
        """Return the mean of h when about `coming` requests are added to a backlog."""
        total = 0.0
        for number, chance in _arrivals(coming):
            total += chance * self.of(backlog + number)
        return total


def _arrivals(mean: float) -> tuple[tuple[float, float], ...]:
    """Return three numbers of arrivals and their chances: mean and variance are right, none is < 0.

    Where nothing is cut off they are those of Gauss and Hermite: m - √3σ, m and m + √3σ.
    """
    if mean <= 0.0:
        return ((0.0, 1.0),)
    variance = mean + (BURSTS * mean) ** 2
    wide = math.sqrt(3 * variance)
    below = min(wide, mean)
    above = max(wide, variance / below)
    low, high = variance / (below * (below + above)), variance / (above * (below + above))
    return (mean - below, low), (mean, 1 - low - high), (mean + above, high)


class _Solver:
    def __init__(
        self,
        actions: Sequence[Action],
        utility: Utility,
        *,
        soft: float,
        hard: float,
        share: float,
    ) -> None:
        self._actions = list(actions)
        self._share = share
        longest = max(a.seconds for a in actions)
        self._ages = np.linspace(0.0, 2 * hard + longest, FINE * 4)
        worth = np.array([value(utility, age, soft, hard) for age in self._ages])
        step = self._ages[1]
        self._integral = np.concatenate([[0.0], np.cumsum((worth[1:] + worth[:-1]) / 2 * step)])

    def solve(self, rate: float, most: float) -> Worth:
        """Return ρ and h for backlogs from 0 to `most`."""
        backlog = np.linspace(0.0, 1.0, POINTS) ** 2 * most
        options = [self._wait(rate, backlog), self._shed(backlog)]
        options += [self._run(a, rate, backlog) for a in self._actions]
        rewards = np.stack([o[0] for o in options])
        times = np.stack([o[1] for o in options])
        chances = np.stack([o[2] for o in options])
        chosen = rewards.argmax(axis=0)
        gain, relative = 0.0, np.zeros(POINTS)
        rows = np.arange(POINTS)
        for _ in range(ROUNDS):
            system = np.eye(POINTS) - chances[chosen, rows]
            system[:, 0] = times[chosen, rows]  # h(0) is 0, and ρ is in its place
            solution = np.linalg.solve(system, rewards[chosen, rows])
            gain, relative = float(solution[0]), np.concatenate([[0.0], solution[1:]])
            scores = rewards - gain * times + chances @ relative
            better = scores.argmax(axis=0)
            known = scores[chosen, rows]
            better = np.where(scores[better, rows] > known + 1e-9, better, chosen)
            if (better == chosen).all():
                break
            chosen = better
        return Worth(rate, gain, backlog.tolist(), relative.tolist())

    def _run(self, action: Action, rate: float, backlog: Any) -> tuple[Any, Any, Any]:
        """Return reward, seconds and chances of where it leads; nobody runs more than wait."""
        count = np.minimum(float(action.count), backlog)
        oldest = action.seconds + backlog / rate
        youngest = action.seconds + (backlog - count) / rate
        reward = action.accuracy * rate * (self._sum(oldest) - self._sum(youngest))
        reward = np.where(backlog < 0.5, -np.inf, reward)
        times = np.full(POINTS, self._share * action.seconds)
        coming = _arrivals(rate * times[0])
        return reward, times, _chances(backlog, backlog - count, coming)

    def _wait(self, rate: float, backlog: Any) -> tuple[Any, Any, Any]:
        times = np.full(POINTS, 1 / rate)
        return np.zeros(POINTS), times, _chances(backlog, backlog, ((1.0, 1.0),))

    def _shed(self, backlog: Any) -> tuple[Any, Any, Any]:
        reward = np.where(backlog < 1.0, -np.inf, 0.0)
        left = _chances(backlog, (1 - SHED) * backlog, ((0.0, 1.0),))
        return reward, np.zeros(POINTS), left

    def _sum(self, age: Any) -> Any:
        return np.interp(age, self._ages, self._integral)


def _chances(grid: Any, left: Any, coming: Sequence[tuple[float, float]]) -> Any:
    """Return the probabilities of the grid's points after so many requests have come."""
    rows = np.arange(POINTS)
    found = np.zeros((POINTS, POINTS))
    for number, weight in coming:
        x = np.minimum(left + number, grid[-1])
        low = np.minimum(np.searchsorted(grid, x, "right") - 1, POINTS - 2)
        part = (x - grid[low]) / (grid[low + 1] - grid[low])
        np.add.at(found, (rows, low), weight * (1 - part))
        np.add.at(found, (rows, low + 1), weight * part)
    found *= 1 - LEAK
    found[:, 0] += LEAK
    return found

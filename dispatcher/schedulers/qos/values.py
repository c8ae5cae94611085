"""The value of a backlog: the solution of a small semi-Markov decision process.

State: the number of waiting requests, x; the oldest has waited x/R seconds, as when R requests come
per second. A decision runs c of them by one variant, which takes D seconds and is worth the sum of
κ·V at their ages; or it waits for the next one; or it refuses the oldest. The next decision is ξD
later, if the device is the ξ-th part of all devices: one of the others is free then. Until then x
becomes x - c + R·ξD, plus or minus the variation of arrivals. The solution is the greatest mean
quality per second, ρ, and the relative value h(x) of a backlog: its gain, or cost, compared with an
empty one. It is found by policy iteration (Howard), exactly for the grid, once per kind of device,
model and rate. Each decision runs one round, so that none takes long.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dispatcher.state.utility import Utility, value

POINTS: Final = 32
"""Points of the backlog's grid; the last one is a backlog whose oldest request is worthless by
now."""

RATES: Final = 40
"""Points of the arrival rate's grid, geometric from `SLOWEST` to `FASTEST` times the capacity."""
SLOWEST: Final = 0.02
FASTEST: Final = 2.0

MARGIN: Final = 0.1
"""Share of the soft deadline by which both deadlines are moved earlier: requests have spent time on
their way, and some batches take longer than usual."""

BURSTS: Final = 0.5
"""Coefficient of variation of a rate, beyond that of a Poisson process, over any time: some bursts
outlast every batch."""

BRIEF: Final = 0.3
"""Duration of other bursts, as a part of the soft deadline. Without them ten devices, which decide
ten times as often as one, would take the arrivals of one second for much steadier."""

LEAK: Final = 1e-6
"""Probability with which the whole backlog disappears: all backlogs then lead to one another,
whatever is chosen. Without it the equations might have no solution."""

FINE: Final = 512
"""Steps of the integral of V over the ages, until the hard deadline."""

SHED: Final = 0.25
"""Share of a backlog that is refused at once, the oldest first."""


@dataclass(frozen=True, slots=True)
class BatchOption:
    """A batch of `count` requests by a variant of accuracy `accuracy` that takes `seconds`."""

    count: int
    accuracy: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """`rate` requests per second, in bursts: some outlast a batch, some last `brief` seconds."""

    rate: float
    brief: float

    def during(self, seconds: float) -> tuple[tuple[float, float], ...]:
        """Return three numbers of arrivals and their probabilities.

        Mean and variance are right, and none is below 0. Without this cut-off they are those of
        Gauss and Hermite: m - √3σ, m and m + √3σ.
        """
        mean = self.rate * seconds
        if mean <= 0.0:
            return ((0.0, 1.0),)
        variance = mean + (BURSTS * mean) ** 2 * (1 + self.brief / seconds)
        wide = math.sqrt(3 * variance)
        below = min(wide, mean)
        above = max(wide, variance / below)
        low, high = variance / (below * (below + above)), variance / (above * (below + above))
        return (mean - below, low), (mean, 1 - low - high), (mean + above, high)


class Values:
    """ρ and h on a grid of rates, for a device that is the part `share` of all, ξ.

    `like`: values of a nearly identical device, as initial values.
    """

    def __init__(
        self,
        actions: Sequence[BatchOption],
        utility: Utility,
        *,
        soft: float,
        hard: float,
        share: float = 1.0,
        like: "Values | None" = None,
    ) -> None:
        margin = MARGIN * soft
        capacity = max(a.count / a.seconds for a in actions) / share
        self._first = SLOWEST * capacity
        self._log = math.log(FASTEST / SLOWEST) / (RATES - 1)
        self._costs = _Costs(actions, utility, soft=soft - margin, hard=hard - margin, share=share)
        self._soft, self._hard = soft, hard
        self._largest = float(max(a.count for a in actions))
        self._kinds = [(a.count, a.accuracy) for a in actions]
        self._worths: dict[int, Worth] = {}
        """The best values known, by grid position."""
        self._open: dict[int, _Problem] = {}
        """Problems by grid position: requested, and perhaps not optimal yet. All positions at once
        would take 0.1 s, during which a gateway answers nothing."""
        self._solved: set[int] = set()
        if like is not None and like._kinds == self._kinds:
            moved = round(math.log(like._first / self._first) / self._log)
            for place, worth in like._worths.items():
                if 0 <= place + moved < RATES:
                    self._worths[place + moved] = worth

    def at(self, rate: float) -> "Worth":
        """Return the values for the grid's rate that is nearest to `rate`.

        A new rate first gets the values of the nearest known one. Its own follow, first under that
        one's policy; each further call improves the policy by a round of iteration until nothing
        changes, which takes two to six rounds. Before any values are known a backlog is worth
        nothing: the first caller does not look ahead.
        """
        place = round(math.log(max(rate, self._first) / self._first) / self._log)
        place = min(place, RATES - 1)
        if place in self._solved:
            return self._worths[place]
        problem = self._open.get(place)
        near = min(self._worths, key=lambda other: abs(other - place), default=None)
        if problem is None:
            rate = self._first * math.exp(place * self._log)
            most = max(rate * self._hard, self._largest)
            first = None if near is None else self._worths[near].choice
            traffic = Traffic(rate, BRIEF * self._soft)
            problem = self._open[place] = _Problem(self._costs, traffic, most, first)
            # Setting up the equations has cost this decision enough.
            return problem.worth if near is None else self._worths[near]
        if not problem.improve():
            del self._open[place]
            self._solved.add(place)
        self._worths[place] = problem.worth
        return problem.worth


class Worth:
    """Values under some traffic: `gain` is ρ, quality per second.

    The grid's points are dense where few requests wait: x grows with the square of their number.
    """

    __slots__ = ("_grid", "_most", "_values", "choice", "gain", "traffic")

    def __init__(
        self, traffic: Traffic, gain: float, grid: list[float], values: list[float], choice: Any
    ) -> None:
        self.traffic = traffic
        self.gain = gain
        self.choice = choice
        """The policy: an option for each point of the grid."""
        self._grid = grid
        self._values = values
        self._most = grid[-1]

    def of(self, backlog: float) -> float:
        """Return h of a backlog, interpolated between the grid's points."""
        if backlog <= 0.0:
            return self._values[0]
        if backlog >= self._most:
            return self._values[-1]
        i = int((POINTS - 1) * math.sqrt(backlog / self._most))
        low, high = self._grid[i], self._grid[i + 1]
        before, after = self._values[i], self._values[i + 1]
        return before + (after - before) * (backlog - low) / (high - low)

    def expected(self, backlog: float, seconds: float) -> float:
        """Return the mean of h for a backlog plus the arrivals within some seconds."""
        total = 0.0
        for number, chance in self.traffic.during(seconds):
            total += chance * self.of(backlog + number)
        return total


class _Costs:
    """Options, one row each: waiting, refusing, and every action. Shapes: O options, P points."""

    def __init__(
        self,
        actions: Sequence[BatchOption],
        utility: Utility,
        *,
        soft: float,
        hard: float,
        share: float,
    ) -> None:
        self._counts = np.array([[float(a.count)] for a in actions])
        self._accuracies = np.array([[a.accuracy] for a in actions])
        self._seconds = np.array([[a.seconds] for a in actions])
        self._share = share
        self._ages, self._integral = _integral(utility, soft, hard)

    def options(self, rate: float, backlog: Any) -> tuple[Any, Any, Any]:
        """Return rewards (O, P), -inf where too few wait; seconds (O); remaining backlog (O, P)."""
        counts = np.minimum(self._counts, backlog)  # no batch is larger than the backlog
        oldest = self._seconds + backlog / rate
        run = self._accuracies * rate * (self._sum(oldest) - self._sum(oldest - counts / rate))
        run[:, backlog < 0.5] = -np.inf
        shed = np.where(backlog < 1.0, -np.inf, 0.0)
        rewards = np.vstack([np.zeros(POINTS), shed, run])
        times = np.concatenate([[1 / rate, 0.0], self._share * self._seconds[:, 0]])
        left = np.vstack([backlog, (1 - SHED) * backlog, backlog - counts])
        return rewards, times, left

    def coming(self, traffic: Traffic) -> Any:
        """Return numbers of arrivals and their probabilities, (2, 3, O, 1)."""
        found = [[(1.0, 1.0), _NEVER, _NEVER], [(0.0, 1.0), _NEVER, _NEVER]]
        found += [list(traffic.during(self._share * s)) for s in self._seconds[:, 0]]
        return np.array(found).transpose(2, 1, 0)[..., None]

    def _sum(self, age: Any) -> Any:
        return np.interp(age, self._ages, self._integral)


@lru_cache(maxsize=64)
def _integral(utility: Utility, soft: float, hard: float) -> tuple[Any, Any]:
    """Return ages up to the hard deadline, and the integral of V up to each of them."""
    ages = np.linspace(0.0, hard, FINE + 1)
    worth = np.ones(FINE + 1)
    falling = ages > soft
    worth[falling] = [value(utility, age, soft, hard) for age in ages[falling].tolist()]
    parts = (worth[1:] + worth[:-1]) / 2 * ages[1]
    return ages, np.concatenate([[0.0], np.cumsum(parts)])


class _Problem:
    """A policy under some traffic, improved until it is optimal; it begins with `first`."""

    def __init__(self, costs: _Costs, traffic: Traffic, most: float, first: Any | None) -> None:
        self._traffic = traffic
        backlog = np.linspace(0.0, 1.0, POINTS) ** 2 * most
        self._grid = backlog.tolist()
        self._rewards, self._times, left = costs.options(traffic.rate, backlog)
        self._steps = _Steps(backlog, left, costs.coming(traffic))
        self._choice = self._rewards.argmax(axis=0)
        if first is not None:
            is_possible = self._rewards[first, _ROWS] > -np.inf
            self._choice = np.where(is_possible, first, self._choice)
        self._relative = np.zeros(POINTS)
        self._is_evaluated = False
        self.worth = Worth(traffic, 0.0, self._grid, self._relative.tolist(), self._choice)
        """Values of the policy; zero until it is evaluated."""

    def improve(self) -> bool:
        """Evaluate the policy, or change it by its values; return whether anything changed."""
        if not self._is_evaluated:
            self._is_evaluated = True
            self.worth = self._evaluated()
            return True
        scores = self._rewards - self.worth.gain * self._times[:, None]
        scores += self._steps.mean(self._relative)
        better = scores.argmax(axis=0)
        is_better = scores[better, _ROWS] > scores[self._choice, _ROWS] + 1e-9
        if not is_better.any():
            return False
        self._choice = np.where(is_better, better, self._choice)
        self.worth = self._evaluated()
        return True

    def _evaluated(self) -> Worth:
        system = self._steps.system(self._choice)
        system[:, 0] = self._times[self._choice]  # h(0) is 0, and ρ is in its column
        found = np.linalg.solve(system, self._rewards[self._choice, _ROWS])
        gain, found[0] = float(found[0]), 0.0
        self._relative = found
        return Worth(self._traffic, gain, self._grid, found.tolist(), self._choice)


_ROWS = np.arange(POINTS)
_IDENTITY = np.eye(POINTS)
_NEVER: Final = (0.0, 0.0)


class _Steps:
    """Transitions of each option: the two neighbouring grid points, and their probabilities."""

    def __init__(self, grid: Any, left: Any, coming: Any) -> None:
        numbers, chances = coming
        most = grid[-1]
        x = np.minimum(left + numbers, most)  # (3, O, P)
        self._low = np.minimum((POINTS - 1) * np.sqrt(x / most), POINTS - 2).astype(np.intp)
        part = (x - grid[self._low]) / np.diff(grid)[self._low]
        self._above = (1 - LEAK) * chances * part
        self._below = (1 - LEAK) * chances - self._above

    def mean(self, values: Any) -> Any:
        """Return the mean of h after each option, (O, P); h(0), where every leak leads, is 0."""
        mean = self._below * values[self._low] + self._above * values[self._low + 1]
        return mean.sum(axis=0)

    def system(self, chosen: Any) -> Any:
        """Return the identity minus the transition probabilities under a policy, (P, P)."""
        place = _ROWS * POINTS + self._low[:, chosen, _ROWS]
        chances = self._below[:, chosen, _ROWS], self._above[:, chosen, _ROWS]
        flat = np.bincount(
            np.concatenate((place, place + 1)).ravel(), np.concatenate(chances).ravel(), POINTS**2
        )
        system: Any = _IDENTITY - flat.reshape(POINTS, POINTS)
        return system

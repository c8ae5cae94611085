"""What a backlog is worth: the solution of a small semi-Markov decision process.

State: how many requests wait, x, the oldest for x/R seconds, as when R requests come per second.
A decision runs c of them by one variant, which takes D seconds and is worth the sum of κ·V at
their ages; or it waits for the next one; or it refuses the oldest. The next decision is ξD later,
if the device is the ξ-th part of all there are: one of the others is free then. Until then x
becomes x - c + R·ξD, more or less by what arrivals vary. The solution is the greatest mean quality
per second, ρ, and the relative value h(x) of a backlog: what it makes, or costs, compared with
none. It is found by policy iteration (Howard), exactly for the grid, once per kind of device,
model and rate; a round per decision, so that none of them takes long.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dispatcher.state.utility import Utility, value

POINTS: Final = 32
"""Of the backlog's grid; a backlog whose oldest request is worthless by now is the last one."""

RATES: Final = 40
"""Of the arrival rate's grid, geometric from `SLOWEST` to `FASTEST` times the capacity."""
SLOWEST: Final = 0.02
FASTEST: Final = 2.0

MARGIN: Final = 0.1
"""Share of the soft deadline by which both are taken to be earlier: requests have been on their way
for a while, and batches take longer now and then."""

BURSTS: Final = 0.5
"""Coefficient of variation of a rate, beyond that of a Poisson process, over any time: some bursts
outlast every batch."""

BRIEF: Final = 0.3
"""How long other bursts last, as a part of the soft deadline: without them, ten devices, which
decide ten times as often as one, would take what comes within a second for much steadier."""

LEAK: Final = 1e-6
"""Probability with which everything that waits is gone: whatever is chosen, all backlogs then lead
to one another, without which the equations might have no solution."""

FINE: Final = 512
"""Steps of the integral of V over the ages, until the hard deadline."""

SHED: Final = 0.25
"""Share of a backlog that is refused at once, the oldest."""


@dataclass(frozen=True, slots=True)
class BatchOption:
    """A batch of `count` by a variant of accuracy `accuracy` that takes `seconds`."""

    count: int
    accuracy: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """`rate` requests per second, in bursts: some outlast a batch, some last `brief` seconds."""

    rate: float
    brief: float

    def during(self, seconds: float) -> tuple[tuple[float, float], ...]:
        """Return three numbers of arrivals and their chances.

        Mean and variance are right, and none is below 0. Where nothing is cut off they are those of
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

    `like`: values of nearly the same, to begin with.
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
        """The best known by place on the grid, if any is."""
        self._open: dict[int, _Problem] = {}
        """By place: what was asked for and may not be the best one yet. All places at once would
        take 0.1 s, in which a gateway answers nobody."""
        self._solved: set[int] = set()
        if like is not None and like._kinds == self._kinds:
            moved = round(math.log(like._first / self._first) / self._log)
            for place, worth in like._worths.items():
                if 0 <= place + moved < RATES:
                    self._worths[place + moved] = worth

    def at(self, rate: float) -> "Worth":
        """Return the values at a rate, of the nearest one of the grid.

        A rate that is new gets those of the nearest known one; its own follow, first under that
        one's policy, and each further call improves the policy by a round of iteration, until
        nothing does: two to six times. Before any is known a backlog is worth nothing: who asks
        first does not look ahead.
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
            # To write it down has cost this decision enough.
            return problem.worth if near is None else self._worths[near]
        if not problem.improve():
            del self._open[place]
            self._solved.add(place)
        self._worths[place] = problem.worth
        return problem.worth


class Worth:
    """Values under some traffic: `gain` is ρ, quality per second.

    The grid's points are close where little waits: x grows with the square of their number.
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
        """Return h of a backlog, on the line between the grid's points."""
        if backlog <= 0.0:
            return self._values[0]
        if backlog >= self._most:
            return self._values[-1]
        i = int((POINTS - 1) * math.sqrt(backlog / self._most))
        low, high = self._grid[i], self._grid[i + 1]
        before, after = self._values[i], self._values[i + 1]
        return before + (after - before) * (backlog - low) / (high - low)

    def expected(self, backlog: float, seconds: float) -> float:
        """Return the mean of h of a backlog and what comes within some seconds."""
        total = 0.0
        for number, chance in self.traffic.during(seconds):
            total += chance * self.of(backlog + number)
        return total


class _Costs:
    """Options, one row each: to wait, to refuse, and every action. Shapes: O options, P points."""

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
        """Return rewards (O, P), -inf where there are too few; seconds (O); what is left (O, P)."""
        counts = np.minimum(self._counts, backlog)  # nobody runs more than wait
        oldest = self._seconds + backlog / rate
        run = self._accuracies * rate * (self._sum(oldest) - self._sum(oldest - counts / rate))
        run[:, backlog < 0.5] = -np.inf
        shed = np.where(backlog < 1.0, -np.inf, 0.0)
        rewards = np.vstack([np.zeros(POINTS), shed, run])
        times = np.concatenate([[1 / rate, 0.0], self._share * self._seconds[:, 0]])
        left = np.vstack([backlog, (1 - SHED) * backlog, backlog - counts])
        return rewards, times, left

    def coming(self, traffic: Traffic) -> Any:
        """Return numbers of arrivals and their chances, (2, 3, O, 1)."""
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
    """A policy under some traffic, improved until nothing is better; it begins with `first`."""

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
        """Of the policy, nothing until it is evaluated."""

    def improve(self) -> bool:
        """Evaluate the policy, or change it by its values; return whether anything was new."""
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
        system[:, 0] = self._times[self._choice]  # h(0) is 0, and ρ is in its place
        found = np.linalg.solve(system, self._rewards[self._choice, _ROWS])
        gain, found[0] = float(found[0]), 0.0
        self._relative = found
        return Worth(self._traffic, gain, self._grid, found.tolist(), self._choice)


_ROWS = np.arange(POINTS)
_IDENTITY = np.eye(POINTS)
_NEVER: Final = (0.0, 0.0)


class _Steps:
    """Where each option leads: the two points of the grid beside, and the chances of both."""

    def __init__(self, grid: Any, left: Any, coming: Any) -> None:
        numbers, chances = coming
        most = grid[-1]
        x = np.minimum(left + numbers, most)  # (3, O, P)
        self._low = np.minimum((POINTS - 1) * np.sqrt(x / most), POINTS - 2).astype(np.intp)
        part = (x - grid[self._low]) / np.diff(grid)[self._low]
        self._above = (1 - LEAK) * chances * part
        self._below = (1 - LEAK) * chances - self._above

    def mean(self, values: Any) -> Any:
        """Return the mean of h after each option, (O, P); h(0), where all leaks to, is 0."""
        mean = self._below * values[self._low] + self._above * values[self._low + 1]
        return mean.sum(axis=0)

    def system(self, chosen: Any) -> Any:
        """Return the identity less the chances of every point under a policy, (P, P)."""
        place = _ROWS * POINTS + self._low[:, chosen, _ROWS]
        chances = self._below[:, chosen, _ROWS], self._above[:, chosen, _ROWS]
        flat = np.bincount(
            np.concatenate((place, place + 1)).ravel(), np.concatenate(chances).ravel(), POINTS**2
        )
        system: Any = _IDENTITY - flat.reshape(POINTS, POINTS)
        return system

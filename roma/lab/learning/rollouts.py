"""The environment: a policy on a stretch of load in `roma.lab.sim.fleet`, and the cost of actions.

The devices, the dispatcher core and the skeleton of the policy are those that serve. An action is
taken only when a device is free and something waits. Its cost is the quality that the answers of
its batch lack of 1. An unanswered query costs 1, charged to the last action before its end.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.schedulers.base import Batch, Choice, PolicyView, Scheduler
from dispatcher.schedulers.qos.base import BatchChoice, DeviceView, VariantQueue
from dispatcher.schedulers.qos.heuristic import Qos
from dispatcher.schedulers.qos.learned import Observer, QosRl
from dispatcher.state.utility import UTILITIES, value
from roma.config.policy_file import Policy
from roma.config.scheduling import SchedulingConfig
from roma.domain.variants import Variant
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Arrival, Ended, FleetPlan

Floats = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """A training task: devices, one model with its variants, and its load by seed.

    `arrivals` must be picklable, for other processes.
    """

    plan: FleetPlan
    model: str
    arrivals: Callable[[int], Iterable[Arrival]]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stretch: `states` before each action, the actions' numbers, their times and costs."""

    states: Floats
    actions: Numbers
    times: Floats
    costs: Floats
    quality: float
    """Mean of all queries, unanswered ones too."""


class RolloutRecord:
    """Record of a policy's actions; a query counts for the last batch that it ran in."""

    def __init__(self) -> None:
        self.states: list[list[float]] = []
        self.actions: list[int] = []
        self.times: list[float] = []
        self.batch: dict[int, int] = {}
        """The action that ran a query, by the query."""

    def add(self, state: list[float], action: int, now: float) -> None:
        """Record an action."""
        self.states.append(state)
        self.actions.append(action)
        self.times.append(now)

    def on_choice(self, choice: Choice) -> Choice:
        """Record the requests of the last action's batch."""
        if isinstance(choice, Batch):
            self.batch.update(dict.fromkeys(choice.requests, len(self.actions) - 1))
        return choice


class Explorer(QosRl):
    """Takes actions at random, as likely as the network's scores make them (a softmax)."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self.record = RolloutRecord()
        self.numbers = np.random.default_rng()

    def pick(self, features: list[float], now: float) -> int:
        """Draw an action, and record it."""
        scores = self._network.scores(features)
        odds = np.exp(scores - scores.max()).cumsum()
        action = int(np.searchsorted(odds, self.numbers.random() * odds[-1], side="right"))
        self.record.add(features, action, now)
        return action

    def choose(self, now: float) -> Choice:
        """Record the chosen batch."""
        return self.record.on_choice(super().choose(now))


class Teacher(Qos):
    """The heuristic as teacher: its choices are recorded as actions of the new policy."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        policy = state.learned
        assert policy is not None
        self.record = RolloutRecord()
        self._observer = Observer(policy)
        self._actions = {(a.batch, a.variant): i for i, a in enumerate(policy.actions)}

    def decide(
        self, variant_queue: VariantQueue, gpu: DeviceView, able: tuple[Variant, ...], now: float
    ) -> BatchChoice | float:
        """Decide, and record it."""
        for other in self.gpus.values():
            if other.name not in self._observer.types:
                self._observer.add(other)
        state = self._observer.features(variant_queue, gpu, list(self.gpus.values()), now)
        decision = super().decide(variant_queue, gpu, able, now)
        assert isinstance(decision, BatchChoice)
        sizes = gpu.sizes(decision.variant)  # an action has one of them, whatever the device runs
        size = next((size for size in sizes if size >= decision.count), sizes[-1])
        self.record.add(state, self._actions[size, decision.variant.name], now)
        return decision

    def choose(self, now: float) -> Choice:
        """Record the chosen batch."""
        return self.record.on_choice(super().choose(now))


def roll(task: Task, policy: Policy, seed: int, *, teach: bool = False) -> Rollout:
    """Run the policy, or its teacher, on the task's stretch of a seed."""
    ends: list[Ended] = []
    fleet = _run(task, Teacher if teach else Explorer, policy, seed, ends)
    found = fleet.dispatcher.policies.active[0]
    assert isinstance(found, Teacher | Explorer)
    record = found.record
    costs = np.zeros(len(record.actions))
    for ended in ends:
        number = ended.request.id
        if ended.reason is None:
            costs[record.batch[number]] += 1.0 - _worth(task, ended)
        else:
            costs[max(0, bisect_right(record.times, ended.ended) - 1)] += 1.0
    return Rollout(
        np.array(record.states, np.float32),
        np.array(record.actions, np.int64),
        np.array(record.times),
        costs,
        _mean(task, ends),
    )


def score(task: Task, policy: Policy, seed: int, kind: type[Scheduler] = QosRl) -> float:
    """Return the mean quality on a stretch, of the policy as it serves or of another kind."""
    ends: list[Ended] = []
    _run(task, kind, policy, seed, ends)
    return _mean(task, ends)


def _run(task: Task, kind: type[Scheduler], policy: Policy, seed: int, ends: list[Ended]) -> Fleet:
    plan = replace(task.plan, policy=kind, learned=policy, seed=seed)
    arrivals = list(task.arrivals(seed))
    fleet = Fleet(plan, on_end=ends.append)
    scheduler = fleet.dispatcher.policies.active[0]
    if isinstance(scheduler, Explorer):
        scheduler.numbers = np.random.default_rng(seed)
    fleet.ask(task.model, iter(arrivals))
    fleet.run(arrivals[-1].time + 2 * task.plan.deadline)
    return fleet


def _mean(task: Task, ends: list[Ended]) -> float:
    return sum([_worth(task, ended) for ended in ends]) / len(ends)


def _worth(task: Task, ended: Ended) -> float:
    """Return Q of a query (eq. 1), 0 without an answer."""
    if ended.variant is None:
        return 0.0
    kappa = {v.name: v.accuracy for v in task.plan.variants[task.model]}[ended.variant]
    terms, request = ended.request.terms, ended.request
    soft = task.plan.soft or task.plan.deadline
    soft = request.arrived + soft if terms is None or terms.soft is None else terms.soft
    utility = UTILITIES[task.plan.quality.utility]
    return kappa * value(utility, ended.ended, soft, request.deadline)

"""Baselines with batches: `edf` and `fcfs`, each adding requests that wait behind the head."""

from dispatcher.schedulers.base import Choice, RunChoice
from dispatcher.schedulers.head_of_line import HeadOfLineScheduler
from dispatcher.state.queues import ModelQueue
from roma.domain.actions import BATCHES
from roma.domain.model import Request
from roma.lab.experiments.clockwork.runs import resnets

EXECUTIONS = next(iter(resnets(1).values())).executions
"""Seconds by batch size."""


class Batching(HeadOfLineScheduler):
    """Runs the head with the smallest key, in as large a batch as there is."""

    def choose(self, now: float) -> Choice:
        """Choose the head, and the requests that wait behind it."""
        choice = super().choose(now)
        if isinstance(choice, RunChoice):
            queue = self.state.queues[choice.model]
            choice.count = min(len(queue), self.largest(queue, now))
        return choice

    def largest(self, queue: ModelQueue, now: float) -> int:
        """Return the largest batch that may be run now."""
        return BATCHES[-1]


class BatchingFcfs(Batching):
    """First come, first served, in batches."""

    def key(self, head: Request) -> float:
        """Order by arrival."""
        return head.arrived


class BatchingEdf(Batching):
    """Earliest deadline first, in the largest batch with which its head is still in time."""

    def key(self, head: Request) -> float:
        """Order by deadline."""
        return head.deadline

    def largest(self, queue: ModelQueue, now: float) -> int:
        """Return the largest batch with which the head is in time; 1 if there is none."""
        head = queue.head
        assert head is not None
        fitting = [b for b, seconds in EXECUTIONS.items() if now + seconds <= head.deadline]
        return max(fitting, default=1)

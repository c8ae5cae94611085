"""Baselines that batch: `edf` and `fcfs`, each with what waits behind the head that it picks."""

from typing import ClassVar

from dispatcher.executors import Executor
from dispatcher.queues import ModelQueue
from dispatcher.schedulers.base import Choice, Options, Run, Scheduler, State
from dispatcher.schedulers.heads import Edf, Fcfs, HeadScheduler
from roma.actions import BATCHES
from roma.experiments.clockwork.runs import resnets
from roma.model import Device

EXECUTIONS = next(iter(resnets(1).values())).executions
"""Seconds by batch size; that of a batch in between is the next larger one's."""


class Batching(Scheduler):
    """Gives a free device the queue whose head is first, as large a batch of it as there is."""

    order: ClassVar[type[HeadScheduler]]

    def __init__(self, state: State, options: Options) -> None:
        super().__init__(state, options)
        self._heads = self.order(state, options)
        self._free: dict[str, None] = {}

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Tell the order of heads."""
        self._heads.on_queue(queue, now)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the devices that are free."""
        if executor.spec.device is Device.GPU:
            if executor.has_room:
                self._free.setdefault(executor.spec.name)
            else:
                self._free.pop(executor.spec.name, None)

    def choose(self, now: float) -> Choice:
        """Give a device that is free the batch of the first head."""
        for gpu in self._free:
            model = self._heads.pick(now)
            if model is not None:
                queue = self.state.queues[model]
                return Run(gpu, model, min(len(queue), self.largest(queue, now)))
        return None

    def largest(self, queue: ModelQueue, now: float) -> int:
        """Return the largest batch that may be run now."""
        return BATCHES[-1]


class BatchingFcfs(Batching):
    """First come, first served, in batches."""

    order = Fcfs


class BatchingEdf(Batching):
    """Earliest deadline first, in the largest batch that its head leaves the time for."""

    order = Edf

    def largest(self, queue: ModelQueue, now: float) -> int:
        """Return the largest batch with which the head is in time; 1 if there is none."""
        head = queue.head
        assert head is not None
        fitting = [b for b, seconds in EXECUTIONS.items() if now + seconds <= head.deadline]
        return max(fitting, default=1)

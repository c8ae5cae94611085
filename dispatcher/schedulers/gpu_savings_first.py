"""GPU policy `gpu_savings_first`: a GPU serves the requests that save the most CPU time.

The saving of a model is c/P_G: the core-seconds saved per second of GPU time. Where GPUs cannot do
everything, serving the largest saving first leaves the CPUs the work that costs them least (a
fractional knapsack; the paper's ROMA picks the largest error and pays for it in cores). Alone this
would starve small savings, so a head goes first if it can still be answered in time, but only if it
starts within the next `URGENT`·SLA.

Only models with a waiting request are looked at, so a choice costs nanoseconds for each of those,
however many models there are and however many requests wait.
"""

import math
from bisect import bisect_left, insort

from dispatcher.schedulers.base import GpuScheduler, PolicyView
from dispatcher.state.executors import Executors
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig

URGENT = 0.1
"""Fraction of the SLA, about one execution on a GPU. With 0 twice as many requests of saturated
GPUs are late; 0.2 is no better (docs/decisions/0004)."""


def gpu_savings(executors: Executors, queue: ModelQueue, gpu_time: float) -> float:
    """Return c/P_G; inf before anything ran on a GPU (so that P_G, `gpu_time`, is measured).

    The profiled cost is preferred: what an executor measures changes with its cores. An unknown
    cost counts as 0: CPUs run the model first and measure it.
    """
    if not gpu_time:
        return math.inf
    cost = queue.spec.cost
    if cost is None:
        cost = executors.cpu_work(queue.spec.name) or 0.0
    return cost / gpu_time


class _Head:
    """The head of a model's queue: its saving, the latest start that answers it in time.

    `urgent` is the time before `latest` from which it goes first, in seconds.
    """

    __slots__ = ("latest", "saving", "urgent", "waits")

    def __init__(self, promise: float) -> None:
        self.latest = 0.0
        self.saving = 0.0
        self.urgent = URGENT * promise
        self.waits = False


class GpuSavingsFirst(GpuScheduler):
    """The most urgent head, otherwise the head of the model with the largest saving."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._models = list(state.queues)
        self._index = {model: i for i, model in enumerate(self._models)}
        self._heads = [_Head(q.spec.sla.response_time) for q in state.queues.values()]
        self._waiting: list[int] = []
        """Indices of models with a waiting request, ascending."""

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Record a model's saving and the latest start that answers its head in time."""
        model, first = queue.spec.name, queue.head
        i = self._index[model]
        head = self._heads[i]
        if head.waits != (first is not None):
            head.waits = not head.waits
            if head.waits:
                insort(self._waiting, i)
            else:
                del self._waiting[bisect_left(self._waiting, i)]
        if first is not None:
            gpu_time = self.state.executors.gpu_time(model)
            head.saving = gpu_savings(self.state.executors, queue, gpu_time)
            head.latest = first.arrived + queue.spec.sla.response_time - gpu_time

    def pick(self, now: float) -> str | None:
        """Return the model that a free GPU runs next."""
        urgent = largest = -1
        least, most = math.inf, -math.inf
        for i in self._waiting:
            head = self._heads[i]
            margin = head.latest - now
            if 0 < margin < head.urgent and margin < least:
                urgent, least = i, margin
            if head.saving > most:
                largest, most = i, head.saving
        if urgent >= 0:
            return self._models[urgent]
        return self._models[largest] if largest >= 0 else None

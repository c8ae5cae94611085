"""GPU policy `gpu_savings_first`: a GPU serves the requests that save the most CPU time.

The saving of a model is c/P_G: the core-seconds saved per second of GPU time. Where GPUs cannot do
everything, serving the largest saving first leaves the CPUs the work that costs them least (a
fractional knapsack; the paper's ROMA picks the largest error and pays for it in cores). Alone this
would starve small savings, so a head goes first if it can still be answered in time, but only if it
starts within the next `URGENT`·SLA.

The index is flat arrays over models: a change costs O(1), a choice two passes over the arrays,
microseconds for thousands of models, however many requests wait.
"""

import numpy as np
import numpy.typing as npt

from dispatcher.schedulers.base import GpuScheduler, PolicyView
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig

URGENT = 0.1
"""Fraction of the SLA, about one execution on a GPU. With 0 twice as many requests of saturated
GPUs are late; 0.2 is no better (docs/decisions/0004)."""


def gpu_savings(state: PolicyView, queue: ModelQueue) -> float:
    """Return c/P_G; inf before anything ran on a GPU (so that P_G is measured).

    The profiled cost is preferred: what an executor measures changes with its cores. An unknown
    cost counts as 0: CPUs run the model first and measure it.
    """
    model = queue.spec.name
    gpu_time = state.executors.gpu_time(model)
    if not gpu_time:
        return float("inf")
    cost = queue.spec.cost
    return ((state.executors.cpu_work(model) or 0.0) if cost is None else cost) / gpu_time


class GpuSavingsFirst(GpuScheduler):
    """The most urgent head, otherwise the head of the model with the largest saving."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._models = list(state.queues)
        self._index = {model: i for i, model in enumerate(self._models)}
        # An empty queue has no saving and is never urgent.
        self._savings: npt.NDArray[np.float64] = np.full(len(self._models), -np.inf)
        self._latest: npt.NDArray[np.float64] = np.full(len(self._models), np.inf)
        self._urgent = np.array([URGENT * q.spec.sla.response_time for q in state.queues.values()])

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Record a model's saving and the latest start that answers its head in time."""
        model = queue.spec.name
        i, head = self._index[model], queue.head
        if head is None:
            self._savings[i], self._latest[i] = -np.inf, np.inf
            return
        self._savings[i] = gpu_savings(self.state, queue)
        promised = head.arrived + queue.spec.sla.response_time
        self._latest[i] = promised - self.state.executors.gpu_time(model)

    def pick(self, now: float) -> str | None:
        """Return the model that a free GPU runs next."""
        margin = self._latest - now
        urgent = (margin > 0) & (margin < self._urgent)
        i = int(np.where(urgent, margin, np.inf).argmin())
        if not urgent[i]:
            i = int(self._savings.argmax())
        return self._models[i] if self._savings[i] > -np.inf else None

"""CPU policy `balance`, the partner of `gpu_savings_first`: spills what GPUs cannot reach in time.

A model's requests overflow if the GPUs, which first serve everything of larger saving, reach the
last of them only after θ·SLA:

    first GPU free + (GPU work of larger saving + own work ahead)/GPUs  >  arrival + θ·SLA

The *youngest* request spills, to the replica with the most cores. It has its whole SLA left, so
fewer cores answer it in time, while the GPU, ten times as fast, takes the oldest. (With the oldest
first on both, up to three times as many are late for the same core-seconds.) Filling one replica
before the next is cheaper than spreading: every replica that runs anything needs the cores that one
request needs.

Nothing spills to a container too small to answer it within its SLA. Without a live GPU there is
nothing to balance: the oldest waiting request runs wherever there is room.
"""

import math
from bisect import insort
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatcher.schedulers.base import (
    TICK,
    Choice,
    PolicyView,
    RunChoice,
    Scheduler,
    WaitUntil,
)
from dispatcher.schedulers.gpu_savings_first import gpu_savings
from dispatcher.state.executors import Executor
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Device

_GPU: Final = Device.GPU  # reading a member of an Enum costs 70 ns in Python 3.11

DRIFT = 0.1
"""Change of an advantage below which the order is kept: advantages are medians of measurements."""


class CpuBalance(Scheduler):
    """Spills the youngest request of a model whose overflow is due.

    The arrays, by model, are needed only while a GPU is live, and updated only then: in a
    deployment without one, they would cost each request more than all other decisions.
    """

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._models = list(state.queues)
        self._index = {model: i for i, model in enumerate(self._models)}
        size = len(self._models)
        slas = np.array([q.spec.sla.response_time for q in state.queues.values()])
        self._slas, self._patience = slas, options.spill * slas
        # GPU-seconds that wait; GPU-seconds of one request; arrival of the youngest.
        self._work, self._gpu_time, self._youngest = np.zeros(size), np.zeros(size), np.zeros(size)
        self._savings = np.full(size, np.inf)
        self._order = np.arange(size)
        self._ordered = True
        # Whether requests wait and a replica has room, and the predicted seconds there.
        self._candidates, self._service = np.zeros(size, dtype=bool), np.zeros(size)
        self._is_ready = [False] * size
        self._ready: list[int] = []
        """Indices of models with a waiting request and a replica with room, ascending; few."""
        self._free: list[dict[str, Executor]] = [{} for _ in range(size)]
        self._gpus: list[Executor] = []

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Record what waits in a queue and, after an execution, what was learnt from it."""
        i = self._index[queue.spec.name]
        self._refresh(i, queue)
        if self._gpus:
            self._weigh(i, queue)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the replicas that have room, and the live GPUs."""
        if executor.spec.device is _GPU:
            live = [gpu for gpu in self.state.executors.gpus if gpu.live]
            if live != self._gpus:
                self._gpus = live
                for i, queue in enumerate(self.state.queues.values()):
                    self._refresh(i, queue)
                    self._time(i, queue)
                    self._weigh(i, queue)
            return
        name, has_room = executor.spec.name, executor.has_room
        for model in executor.spec.models:
            i = self._index[model]
            free = self._free[i]
            if has_room == (name in free) and not self._gpus:
                continue  # unchanged, as after most requests
            if has_room:
                free[name] = executor
            else:
                free.pop(name, None)
            queue = self.state.queues[model]
            self._refresh(i, queue)
            if self._gpus:
                self._time(i, queue)

    def choose(self, now: float) -> Choice:
        """Run a request that overflows, or ask to be woken when one will."""
        if not self._ready:
            return None
        if not self._gpus:
            i = self._ready[0]
            return RunChoice(self._fastest(i).spec.name, self._models[i])
        candidates = np.flatnonzero(self._candidates)
        age = now - self._youngest[candidates]
        in_time = age + self._service[candidates] <= self._slas[candidates]
        candidates = candidates[in_time]
        if not candidates.size:
            return None
        gpus, ahead = len(self._gpus), self._ahead()
        due = self._youngest + self._patience - ahead / gpus
        reach = min(gpu.free_at(now) for gpu in self._gpus) + TICK
        overflow = candidates[due[candidates] <= reach]
        if not overflow.size:
            return WaitUntil(float(due[candidates].min()))
        # The largest saving first: a request that it spills is no longer ahead of the others.
        i = int(overflow[self._savings[overflow].argmax()])
        return RunChoice(self._fastest(i).spec.name, self._models[i], youngest=True)

    def _refresh(self, i: int, queue: ModelQueue) -> None:
        """Record whether a model has both a waiting request and a replica with room."""
        is_ready = bool(queue.waiting) and bool(self._free[i])
        if is_ready != self._is_ready[i]:
            self._is_ready[i] = is_ready
            if is_ready:
                insort(self._ready, i)
            else:
                self._ready.remove(i)
        if self._gpus:
            self._candidates[i] = is_ready

    def _time(self, i: int, queue: ModelQueue) -> None:
        """Predict how long a model's request takes on the replica that it would get."""
        has_room = bool(self._free[i])
        self._service[i] = self._expected(self._fastest(i), queue) if has_room else math.inf

    def _weigh(self, i: int, queue: ModelQueue) -> None:
        """Record a model's work for the GPUs, and what they save."""
        youngest = queue.youngest
        self._youngest[i] = 0.0 if youngest is None else youngest.arrived
        gpu_time = self.state.executors.gpu_time(queue.spec.name)
        self._gpu_time[i], self._work[i] = gpu_time, gpu_time * len(queue)
        found, known = gpu_savings(self.state, queue), self._savings[i]
        if found != known and (math.isinf(known) or abs(found - known) > DRIFT * known):
            self._savings[i], self._ordered = found, False

    def _ahead(self) -> npt.NDArray[np.float64]:
        """Return by model the GPU-seconds that come before the youngest of its requests."""
        if not self._ordered:
            self._order = np.argsort(-self._savings, kind="stable")
            self._ordered = True
        ahead = np.empty_like(self._work)
        ahead[self._order] = np.cumsum(self._work[self._order])
        return ahead - self._gpu_time

    def _fastest(self, i: int) -> Executor:
        fastest: Executor | None = None
        for executor in self._free[i].values():
            if fastest is None or executor.share > fastest.share:
                fastest = executor
        assert fastest is not None, f"{self._models[i]}: no replica has room"
        return fastest

    def _expected(self, executor: Executor, queue: ModelQueue) -> float:
        """Return the predicted seconds of a request: measured, else profiled, else 0 (a probe)."""
        measured = executor.expected(queue.spec.name)
        if measured is not None:
            return measured
        cost = queue.spec.cost
        return 0.0 if cost is None else cost / executor.share

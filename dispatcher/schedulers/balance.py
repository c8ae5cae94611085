"""CPU policy `balance`, the partner of `gpu_savings_first`: spills what GPUs cannot reach in time.

A model's requests overflow if the GPUs, which first serve everything of larger saving, reach the
last of them only after θ·SLA:

    first GPU free + (GPU work of larger saving + own work ahead)/GPUs  >  arrival + θ·SLA

The *youngest* request spills, to the replica with the most cores. It has its whole SLA left, so
fewer cores answer it in time, while the GPU, ten times as fast, takes the oldest. (With the oldest
first on both, up to three times as many are late for the same core-seconds.) Filling one replica
before the next is cheaper than spreading: every replica that runs anything needs the cores that one
request needs.

Nothing spills to a container too small to answer it within its SLA. Where even the most cores would
be too few, measurements are in doubt, as of a machine that was slow for a while: a request is tried
now and then. Without a GPU in rotation there is nothing to balance: the oldest waiting request runs
wherever there is room.
"""

import math
from bisect import bisect_left, insort
from typing import Final

from dispatcher.schedulers.base import (
    TICK,
    Choice,
    PolicyView,
    RunChoice,
    Scheduler,
    WaitUntil,
)
from dispatcher.schedulers.gpu_savings_first import gpu_savings
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from dispatcher.state.request_cost import TRIAL_SHARE
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Device

_GPU: Final = Device.GPU  # reading a member of an Enum costs 70 ns in Python 3.11

DRIFT = 0.1
"""Change of an advantage below which the order is kept: advantages are medians of measurements."""


class _Backlog:
    """A model's waiting requests, and the CPU replicas with room; times in seconds.

    `service` is the predicted time on the replica that a request would get, `least` that with the
    most cores, as far as it is measured; `tried` is when that was last tried although it was longer
    than `promise`. A request takes a GPU `gpu_time`, all that wait `gpu_work`; `saving` orders them
    there. `youngest` is the arrival of the last one. `is_ready`: one waits, and a replica has room.
    `is_off_gpus`: no GPU has the model.
    """

    __slots__ = (
        "free",
        "gpu_time",
        "gpu_work",
        "is_off_gpus",
        "is_ready",
        "least",
        "model",
        "patience",
        "promise",
        "saving",
        "service",
        "tried",
        "waits",
        "youngest",
    )

    def __init__(self, queue: ModelQueue, spill: float, *, is_off_gpus: bool) -> None:
        self.model = queue.spec.name
        self.is_off_gpus = is_off_gpus
        self.promise = queue.spec.sla.response_time
        self.patience = spill * self.promise
        self.free: dict[str, Executor] = {}
        self.is_ready = self.waits = False
        self.service = self.least = self.gpu_time = self.gpu_work = self.youngest = 0.0
        self.saving = math.inf
        self.tried = -math.inf

    def is_trial(self, now: float) -> bool:
        """Return True if a request may be tried although it is predicted to be late."""
        return self.least > self.promise and now - self.tried >= self.least / TRIAL_SHARE

    @property
    def fastest(self) -> Executor:
        """The replica with the most cores of those with room."""
        fastest: Executor | None = None
        for executor in self.free.values():
            if fastest is None or executor.share > fastest.share:
                fastest = executor
        assert fastest is not None, f"{self.model}: no replica has room"
        return fastest


class CpuBalance(Scheduler):
    """Spills the youngest request of a model whose overflow is due.

    What GPUs have to do is needed only while one is in rotation, and updated only then: in a
    deployment without one, it would cost each request more than all other decisions.
    """

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._index = {model: i for i, model in enumerate(state.queues)}
        off = state.executors.off_gpus
        self._backlogs = [
            _Backlog(queue, options.spill, is_off_gpus=model in off)
            for model, queue in state.queues.items()
        ]
        self._ready: list[int] = []
        """Indices of models with a waiting request and a replica with room, ascending; few."""
        self._by_saving: list[tuple[float, int]] = []
        """Negated saving and index of models with a waiting request: the order of the GPUs."""
        self._gpus: list[Executor] = []

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Record what waits in a queue and, after an execution, what was learnt from it."""
        i = self._index[queue.spec.name]
        self._refresh(i, queue)
        if self._gpus:
            self._weigh(i, queue)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Keep the replicas that have room, and the GPUs in rotation."""
        if executor.spec.device is _GPU:
            gpus = [gpu for gpu in self.state.executors.gpus if gpu.in_rotation]
            if gpus != self._gpus:
                self._gpus = gpus
                for i, queue in enumerate(self.state.queues.values()):
                    self._time(i, queue)
                    self._weigh(i, queue)
            return
        name, has_room = executor.spec.name, executor.has_room
        for model in executor.spec.models:
            i = self._index[model]
            free = self._backlogs[i].free
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
            backlog = self._backlogs[self._ready[0]]
            return RunChoice(backlog.fastest.spec.name, backlog.model)
        gpus = len(self._gpus)
        reach = min([gpu.free_at(now) for gpu in self._gpus]) + TICK
        ahead, first_due = 0.0, math.inf
        # The largest saving first: a request that it spills is no longer ahead of the others.
        for _, i in self._by_saving:
            backlog = self._backlogs[i]
            if backlog.is_off_gpus:
                if backlog.is_ready:
                    return RunChoice(backlog.fastest.spec.name, backlog.model)
                continue
            ahead += backlog.gpu_work
            if not backlog.is_ready:
                continue
            is_late = now - backlog.youngest + backlog.service > backlog.promise
            if is_late and not backlog.is_trial(now):
                continue
            due = backlog.youngest + backlog.patience - (ahead - backlog.gpu_time) / gpus
            if due <= reach:
                if is_late:
                    backlog.tried = now
                return RunChoice(backlog.fastest.spec.name, backlog.model, youngest=True)
            first_due = min(first_due, due)
        return None if first_due == math.inf else WaitUntil(first_due)

    def _refresh(self, i: int, queue: ModelQueue) -> None:
        """Record whether a model has both a waiting request and a replica with room."""
        backlog = self._backlogs[i]
        is_ready = bool(queue.waiting) and bool(backlog.free)
        if is_ready != backlog.is_ready:
            backlog.is_ready = is_ready
            if is_ready:
                insort(self._ready, i)
            else:
                self._ready.remove(i)

    def _time(self, i: int, queue: ModelQueue) -> None:
        """Predict how long a model's request takes on the replica that it would get."""
        backlog = self._backlogs[i]
        if not backlog.free:
            backlog.service = math.inf
            return
        executor = backlog.fastest
        backlog.service = self._expected(executor, queue)
        backlog.least = (executor.work(backlog.model) or 0.0) / executor.most[1]

    def _weigh(self, i: int, queue: ModelQueue) -> None:
        """Record a model's work for the GPUs, and its place in their order."""
        backlog, youngest, executors = self._backlogs[i], queue.youngest, self.state.executors
        gpu_time = executors.gpu_time(backlog.model)
        backlog.gpu_time, backlog.gpu_work = gpu_time, gpu_time * len(queue)
        found, known = gpu_savings(executors, queue, gpu_time), backlog.saving
        moves = found != known and (math.isinf(known) or abs(found - known) > DRIFT * known)
        if backlog.waits and (moves or youngest is None):
            del self._by_saving[bisect_left(self._by_saving, (-known, i))]
            backlog.waits = False
        if moves:
            backlog.saving = found
        if youngest is not None:
            backlog.youngest = youngest.arrived
            if not backlog.waits:
                insort(self._by_saving, (-backlog.saving, i))
                backlog.waits = True

    def _expected(self, executor: Executor, queue: ModelQueue) -> float:
        """Return the predicted seconds of a request: measured, else profiled, else 0 (a probe)."""
        measured = executor.expected(queue.spec.name)
        if measured is not None:
            return measured
        cost = queue.spec.cost
        return 0.0 if cost is None else cost / executor.share

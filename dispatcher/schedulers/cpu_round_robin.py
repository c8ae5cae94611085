"""CPU policy `round_robin`: fair turns for models and their replicas (paper §3), with spill.

The paper gives any waiting request to any CPU executable with room. With θ > 0 two refinements hold
while a GPU is in rotation:

* spill: a request goes to a CPU only if the GPUs cannot reach it before θ·SLA, with all other
  waiting requests counted as ahead of it: the GPUs finish them at
  `first GPU free + queued GPU work / GPUs`, kept as a running sum.
* size: no request goes to a container too small to meet the set point by itself (c/u > R°).
"""

import math
from collections import OrderedDict
from heapq import heappop, heappush

from dispatcher.schedulers.base import (
    TICK,
    Choice,
    PolicyView,
    RunChoice,
    Scheduler,
    WaitUntil,
)
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Device


class CpuRoundRobin(Scheduler):
    """Turns among models that have both a waiting request and a CPU executor with room."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._spill = options.spill
        self._off_gpus = state.executors.off_gpus
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._free: dict[str, dict[str, Executor]] = {m: {} for m in state.queues}
        # Models held back by spill, by the time their head must spill. The heap is lazy: an entry
        # counts only while `_held_until` names the same time.
        self._held: list[tuple[float, str]] = []
        self._held_until: dict[str, float] = {}
        self._gpus: list[Executor] = []
        self._gpu_work: dict[str, float] = {}
        self._gpu_work_total = 0.0

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Update the turns, and the work that waits for the GPUs."""
        if self._spill:
            model = queue.spec.name
            work = len(queue) * self.state.executors.gpu_time(model)
            self._gpu_work_total += work - self._gpu_work.get(model, 0.0)
            self._gpu_work[model] = work
        self._refresh(queue)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Update the replicas with room; a GPU that comes or goes changes what must spill."""
        if executor.spec.device is Device.GPU:
            if self._spill:
                self._update_gpus()
            return
        name, has_room = executor.spec.name, executor.has_room
        for model in executor.spec.models:
            free = self._free[model]
            if has_room == (name in free) and not self._gpus:
                continue
            if has_room:
                free.setdefault(name, executor)
            else:
                free.pop(name, None)
            self._refresh(self.state.queues[model])

    def choose(self, now: float) -> Choice:
        """Run the next model in turn on its next replica in turn."""
        if not self._ready and not self._held:
            return None
        reach = self._gpus_reach(now)
        while self._held and self._held[0][0] <= reach:
            self._release(*heappop(self._held))
        while self._ready:
            model = next(iter(self._ready))
            held = bool(self._gpus) and self._hold(model, reach)
            executor = None if held else self._next_replica(model)
            if executor is None:
                del self._ready[model]
                continue
            if len(self._ready) > 1:
                self._ready.move_to_end(model)
            return RunChoice(executor.spec.name, model)
        return self._next_spill()

    def _refresh(self, queue: ModelQueue) -> None:
        model = queue.spec.name
        if not queue.waiting or not self._free[model]:
            if model in self._ready:
                del self._ready[model]
        elif model not in self._ready and (
            not self._held_until or self._held_until.get(model) != self._must_spill(queue)
        ):
            self._ready[model] = None

    def _must_spill(self, queue: ModelQueue) -> float:
        """Return until when the GPUs may take to finish everything that waits.

        They reach the head in time if everything but the head itself is done before it has waited
        θ·SLA.
        """
        head = queue.head
        assert head is not None
        patience = self._spill * queue.spec.sla.response_time
        own = self.state.executors.gpu_time(queue.spec.name) / max(1, len(self._gpus))
        return head.arrived + patience + own

    def _update_gpus(self) -> None:
        gpus = [gpu for gpu in self.state.executors.gpus if gpu.in_rotation]
        if gpus != self._gpus:
            self._gpus = gpus
            self._held.clear()
            self._held_until.clear()
            for queue in self.state.queues.values():
                self._refresh(queue)

    def _gpus_reach(self, now: float) -> float:
        """Return when the GPUs will have reached all waiting requests; never without a GPU."""
        if not self._gpus:
            return math.inf
        free_at = min(gpu.free_at(now) for gpu in self._gpus)
        return free_at + self._gpu_work_total / len(self._gpus) + TICK

    def _hold(self, model: str, reach: float) -> bool:
        if model in self._off_gpus:
            return False
        must_spill = self._must_spill(self.state.queues[model])
        if must_spill <= reach:
            return False
        self._held_until[model] = must_spill
        heappush(self._held, (must_spill, model))
        return True

    def _release(self, must_spill: float, model: str) -> None:
        if self._held_until.get(model) == must_spill:
            del self._held_until[model]
            self._refresh(self.state.queues[model])

    def _next_replica(self, model: str) -> Executor | None:
        free = self._free[model]
        has_gpu = bool(self._gpus) and model not in self._off_gpus
        for name, executor in free.items():
            if has_gpu and self._too_small(executor, model):
                continue
            if len(free) > 1:
                free[name] = free.pop(name)
            return executor
        return None

    def _too_small(self, executor: Executor, model: str) -> bool:
        set_point = self.state.queues[model].spec.sla.set_point
        return (executor.expected(model) or 0.0) > set_point

    def _next_spill(self) -> Choice:
        """Ask to be woken when the first held model must spill, if nothing changes before."""
        while self._held:
            must_spill, model = self._held[0]
            if self._held_until.get(model) == must_spill:
                return WaitUntil(must_spill - self._gpu_work_total / len(self._gpus))
            heappop(self._held)
        return None

"""A baseline modelled on Clipper (Crankshaw et al., NSDI 2017, §4.3): adaptive batching.

Every model has a bound on its batch size, which grows by one while a batch's latency is within the
SLO and shrinks by a tenth when it was above. Models take turns. Nothing is refused, nothing is
predicted: the SLO is the target of a reactive law, which is Clockwork's criticism of it. A batch's
latency is as a model's container would measure it: it begins when the model has work and none of
its own running, so it includes the turns of others on the same device.
"""

from typing import Final

from dispatcher.schedulers.base import Choice, PolicyView, RunChoice, Scheduler
from dispatcher.state.executor import Executor
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import BATCHES
from roma.domain.model import Device

GROWTH: Final = 1.0
SHRINKAGE: Final = 0.9

LARGEST: Final = float(BATCHES[-1])
"""The largest batch that is profiled."""


class Clipper(Scheduler):
    """Adaptive batches, models in turns."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self.bounds = dict.fromkeys(state.queues, 1.0)
        """The batch size of each model, as the law moves it."""
        self._since: dict[str, float] = {}
        """Time since which a model waits for its turn; the first is next."""
        self._free: dict[str, None] = {}
        self._running: dict[str, tuple[str, float]] = {}

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Let a model with requests wait for its turn, unless it is running."""
        model = queue.spec.name
        if not queue:
            self._since.pop(model, None)
        elif all(model != running for running, _ in self._running.values()):
            self._since.setdefault(model, now)

    def on_executor(self, executor: Executor, now: float) -> None:
        """Learn from a batch that ended."""
        if executor.spec.device is not Device.GPU:
            return
        name = executor.spec.name
        if not executor.has_room:
            self._free.pop(name, None)
            return
        self._free.setdefault(name)
        if name in self._running:
            model, since = self._running.pop(name)
            queue = self.state.queues[model]
            is_within = now - since <= queue.spec.sla.response_time
            bound = self.bounds[model]
            self.bounds[model] = (
                min(bound + GROWTH, LARGEST) if is_within else max(bound * SHRINKAGE, 1.0)
            )
            self.on_queue(queue, now)

    def choose(self, now: float) -> Choice:
        """Give the device that is free to the model that has waited longest for its turn."""
        for gpu in self._free:
            for model, since in self._since.items():
                count = min(int(self.bounds[model]), len(self.state.queues[model]))
                self._running[gpu] = model, since
                del self._since[model]
                return RunChoice(gpu, model, count)
        return None

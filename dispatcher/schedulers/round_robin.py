"""Round robin on GPUs: the models with waiting requests take turns (the paper's RR baselines)."""

from collections import OrderedDict

from dispatcher.schedulers.base import GpuScheduler, PolicyView
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig


class RoundRobin(GpuScheduler):
    """Turns among models, one request each."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._turns: OrderedDict[str, None] = OrderedDict()

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Keep the models that have waiting requests, in the order of their turns."""
        if queue:
            self._turns.setdefault(queue.spec.name)
        else:
            self._turns.pop(queue.spec.name, None)

    def pick(self, now: float) -> str | None:
        """Take the model whose turn it is; move it to the end of the order."""
        for model in self._turns:
            self._turns.move_to_end(model)
            return model
        return None

"""GPU policy `roma`: the largest SLA error first (paper Algorithm 1, as restored).

For each model m with requests waiting

    E = mean over the queue of (waited + n·P_G), n = 0, 1, … the position
    w = β·E + (1 - β)·R            R the mean measured response time
    ε = max(0, (w - R°)/R°)        R° = α·SLA

and the head of the queue with the largest ε runs; where all ε are 0, the largest w/R°. Both rules
pick the largest w/R°, and w/R° = a + b·now, where a and b change only when the queue or R does. So
a change costs O(1), and a choice is one multiply-add and an argmax over a flat array: microseconds
for thousands of models, however many requests wait.
"""

import numpy as np
import numpy.typing as npt

from dispatcher.schedulers.base import GpuScheduler, PolicyView
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig


class Roma(GpuScheduler):
    """Largest SLA error first."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._beta = options.beta
        self._models = list(state.queues)
        self._index = {model: i for i, model in enumerate(self._models)}
        # An empty queue scores -inf at any time.
        self._a: npt.NDArray[np.float64] = np.full(len(self._models), -np.inf)
        self._b: npt.NDArray[np.float64] = np.zeros(len(self._models))

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Recompute the line w/R° = a + b·now of one model."""
        spec = queue.spec
        i = self._index[spec.name]
        if not queue:
            self._a[i], self._b[i] = -np.inf, 0.0
            return
        measured = queue.response.mean(now)
        # Nothing measured yet: use the expectation alone.
        beta, r = (1.0, 0.0) if measured is None else (self._beta, measured)
        ahead = self.state.executors.gpu_time(spec.name) * (len(queue) - 1) / 2
        set_point = spec.sla.set_point
        self._b[i] = beta / set_point
        self._a[i] = (beta * (ahead - queue.mean_arrival) + (1 - beta) * r) / set_point

    def pick(self, now: float) -> str | None:
        """Return the model with the largest w/R°."""
        error = self._a + self._b * now
        i = int(error.argmax())
        return self._models[i] if error[i] > -np.inf else None

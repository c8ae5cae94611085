"""GPU policies that compare only the heads of the queues: `fcfs` and `edf`.

Within a model requests stay in order of arrival, so one entry per queue suffices. The heap is lazy:
an entry whose request no longer heads its queue is dropped when it surfaces.
"""

from abc import abstractmethod
from heapq import heapify, heappop, heappush

from mypy_extensions import mypyc_attr

from dispatcher.schedulers.base import GpuScheduler, PolicyView
from dispatcher.state.queues import ModelQueue
from roma.config.scheduling import SchedulingConfig
from roma.domain.model import Request

SPARE_ENTRIES = 16
"""Number of stale entries that are not worth a rebuild."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadOfLineScheduler(GpuScheduler):
    """Runs the head with the smallest key."""

    def __init__(self, state: PolicyView, options: SchedulingConfig) -> None:
        super().__init__(state, options)
        self._heap: list[tuple[float, int, str]] = []
        self._entered: dict[str, int] = {}

    @abstractmethod
    def key(self, head: Request) -> float:
        """Return the point in time by which heads are ordered, smallest first."""

    def on_queue(self, queue: ModelQueue, now: float) -> None:
        """Enter a head that is not in the heap yet."""
        head, model = queue.head, queue.spec.name
        if head is None:
            self._entered.pop(model, None)
        elif self._entered.get(model) != head.id:
            self._entered[model] = head.id
            heappush(self._heap, (self.key(head), head.id, model))
            if len(self._heap) > 2 * len(self.state.queues) + SPARE_ENTRIES:
                self._rebuild()

    def _rebuild(self) -> None:
        """Drop stale entries: with no free GPU nothing is picked, while CPUs change the heads."""
        heads = [(self.state.queues[model].head, model) for model in self._entered]
        self._heap = [(self.key(h), h.id, model) for h, model in heads if h is not None]
        heapify(self._heap)

    def pick(self, now: float) -> str | None:
        """Return the model of the first entry that still heads its queue."""
        while self._heap:
            _, request_id, model = self._heap[0]
            head = self.state.queues[model].head
            if head is not None and head.id == request_id:
                return model
            heappop(self._heap)
        return None


class Fcfs(HeadOfLineScheduler):
    """First come, first served across all models."""

    def key(self, head: Request) -> float:
        """Order by arrival."""
        return head.arrived


class Edf(HeadOfLineScheduler):
    """Earliest deadline first across the models' heads."""

    def key(self, head: Request) -> float:
        """Order by deadline."""
        return head.deadline

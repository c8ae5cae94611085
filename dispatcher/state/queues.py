"""Queues, one per model and priority: first in, first out, with running sums.

Every operation but `put_back` is O(1), and no number kept here needs a scan of the waiting
requests: the cost is the same for one request and for a million.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from dispatcher.state.request_cost import Sizes
from dispatcher.state.retry_budget import RetryBudget
from dispatcher.state.utility import Utility, linear
from roma.domain.events import Reason, Reject
from roma.domain.model import Device, ModelSpec, Priority, Request
from roma.domain.stats import Histogram, SlidingWindow, bounds_around

_INTERACTIVE: Final = Priority.INTERACTIVE  # reading a member of an Enum costs 70 ns

REFUSALS = 50
"""Refusals remembered per model: enough to explain them, however many there are in an overload."""


class Durations:
    """Durations of a model's answered requests on one kind of device, in seconds.

    `request` is `queue` plus `execution`. Every answer whose input was accepted is recorded once in
    each of the three. One that refused the input is recorded in none: it says nothing about the
    model's speed. `answered` counts both.
    """

    __slots__ = ("answered", "execution", "queue", "request")

    def __init__(self, promise: float) -> None:
        self.answered = 0
        bounds = bounds_around(promise)
        self.request = Histogram(bounds)
        self.queue = Histogram(bounds)
        self.execution = Histogram(bounds)

    def add(self, arrived: float, started: float, ended: float) -> None:
        """Record a request by three points on one clock."""
        self.queue.add(started - arrived)
        if started > arrived:
            self.request.add(ended - arrived)
            self.execution.add(ended - started)
        else:  # it did not wait
            self.request.add_twice(self.execution, ended - arrived)


class ModelQueue:
    """The waiting requests of one model, and the measurements of those that left.

    `invalid` counts the answers that refused the input, `late` those that came after the promise.
    `cancelled_late` counts the requests that could no longer be in time when their client went
    away. `rejected_by_client` counts those rejected for their client's own deadline although they
    could have been in time, or for their size. `waiting` maps ids to requests, oldest first; only
    the core changes it. Counters only grow: to get a rate, take differences. `cpu` and `gpu` have
    the durations of the answers there, `refusals` the last refusals, each with its time.

    For a model with variants, whose κ are in `accuracy`: `answers` counts those of each variant,
    `quality` is the sum of their values.
    """

    __slots__ = (
        "_arrived_sum",
        "_head",
        "accuracy",
        "answers",
        "arrivals",
        "asked_at",
        "cancelled",
        "cancelled_late",
        "cpu",
        "failed",
        "gpu",
        "invalid",
        "late",
        "quality",
        "refusals",
        "rejected",
        "rejected_by_client",
        "response",
        "response_limit",
        "retries",
        "sizes",
        "spec",
        "utility",
        "waiting",
        "waiting_since",
    )

    def __init__(self, spec: ModelSpec, window: float, utility: Utility = linear) -> None:
        # First what every request reads: the compiled build lays attributes out in this order, and
        # of thousands of models none stays in the processor's cache.
        self.spec = spec
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self._head: Request | None = None
        """The first waiting request, if it is known."""
        self._arrived_sum = 0.0
        self.arrivals = 0
        self.waiting_since = -math.inf
        """Time since which the queue has not been empty."""
        self.asked_at = -math.inf
        """Time of the last `CoresNeeded`."""
        self.response_limit = spec.sla.response_time if spec.sla.sheds_late_requests else math.inf
        """Seconds after which an answer is worth no more than a refusal."""
        self.response = SlidingWindow(window)
        self.late = 0
        self.sizes = Sizes()
        self.accuracy = {variant.name: variant.accuracy for variant in spec.variants}
        self.cpu = Durations(spec.sla.response_time)
        self.gpu = Durations(spec.sla.response_time)
        self.utility = utility
        self.answers: Counter[str] = Counter()
        self.quality = 0.0
        self.rejected: Counter[Reason] = Counter()
        self.rejected_by_client = 0
        self.refusals: deque[tuple[float, Reject]] = deque(maxlen=REFUSALS)
        self.failed = 0
        self.invalid = 0
        self.retries = RetryBudget()
        self.cancelled = self.cancelled_late = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def __repr__(self) -> str:
        return f"<ModelQueue {self.spec.name}: {len(self)} waiting, {self.arrivals} arrived>"

    @property
    def completed(self) -> Counter[Device]:
        """Number of answered requests by device; no entry for a device that answered none."""
        return +Counter({Device.CPU: self.cpu.answered, Device.GPU: self.gpu.answered})

    @property
    def head(self) -> Request | None:
        """The request that has waited longest, or None."""
        if self._head is None and self.waiting:
            self._head = next(iter(self.waiting.values()))
        return self._head

    @property
    def youngest(self) -> Request | None:
        """The request that arrived last, or None."""
        for request in reversed(self.waiting.values()):
            return request
        return None

    def push(self, request: Request) -> None:
        """Append a request."""
        if not self.waiting:
            self._head = request
            self.waiting_since = request.arrived
        self.waiting[request.id] = request
        self._arrived_sum += request.arrived

    def put_back(self, request: Request) -> None:
        """Put a request that left without an answer back into the order of arrival.

        The only operation that scans the queue, unless the request is older than all that wait.
        """
        place, head = (request.arrived, request.id), self.head
        if head is not None and place < (head.arrived, head.id):
            self.push(request)
            self.waiting.move_to_end(request.id, last=False)
            self._head = request
            return
        younger = [r.id for r in self.waiting.values() if (r.arrived, r.id) > place]
        self.push(request)
        for request_id in younger:
            self.waiting.move_to_end(request_id)
        self._head = None

    def remove(self, request_id: int) -> None:
        """Take a request out, wherever it is in the queue."""
        request = self.waiting[request_id]
        del self.waiting[request_id]  # `pop` takes three times as long
        if request is self._head:
            self._head = None
        self._arrived_sum = self._arrived_sum - request.arrived if self.waiting else 0.0

    @property
    def mean_arrival(self) -> float:
        """The mean arrival time of the waiting requests; the queue must not be empty."""
        return self._arrived_sum / len(self.waiting)


class Queues:
    """The queues of all models, by name.

    Low-priority requests are counted separately: `low_priority` has a queue for each model that
    received any.
    """

    def __init__(self, models: Iterable[ModelSpec], window: float, utility: Utility) -> None:
        self._window = window
        self._utility = utility
        self.by_model: dict[str, ModelQueue] = {}
        self.low_priority: dict[str, ModelQueue] = {}
        for spec in models:
            self.add(spec)

    def add(self, spec: ModelSpec) -> None:
        """Add a model."""
        self.by_model[spec.name] = ModelQueue(spec, self._window, self._utility)

    def remove(self, model: str) -> None:
        """Forget a model."""
        del self.by_model[model]
        self.low_priority.pop(model, None)

    def of(self, request: Request) -> ModelQueue:
        """Return the queue that a request belongs to."""
        queue = self.by_model[request.model]
        if request.priority is _INTERACTIVE:
            return queue
        low = self.low_priority.get(request.model)
        if low is None:
            low = ModelQueue(queue.spec, self._window, self._utility)
            low.response_limit = math.inf
            low.sizes = queue.sizes
            self.low_priority[request.model] = low
        return low

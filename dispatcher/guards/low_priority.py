"""Where a low-priority request may run: in what interactive ones leave over.

Nothing takes a computation back once it runs, so a low-priority request starts only where an
interactive one that comes next would still be in time: none of its model waits, the model keeps its
promise with something to spare, and either a slot stays free or two services fit into the set
point.
"""

from typing import Final

from dispatcher.state.executors import Executor, Executors
from dispatcher.state.queues import ModelQueue

HEADROOM: Final = 0.8
"""Share of the set point that the measured response time may reach."""

RECHECK_INTERVAL: Final = 0.05
"""Seconds between two looks while low-priority requests wait: no event says that room came up."""


def executor_with_headroom(
    queue: ModelQueue, executors: Executors, now: float, *, is_long: bool = False
) -> Executor | None:
    """Return an executor that can take a low-priority request of a model now, or None.

    `queue` is the model's interactive one. The policies have chosen before: a GPU that still has
    room has nothing else to do. `is_long`: it runs only where another slot stays free.
    """
    set_point = queue.spec.sla.set_point
    if queue.waiting or (queue.response.mean(now) or 0.0) > HEADROOM * set_point:
        return None
    for executor in executors.of(queue.spec.name):
        if not executor.has_room or executor.spec.is_planned:
            continue  # the policy of a planned device has room for whoever can wait
        expected = executor.expected(queue.spec.name) or 0.0
        if len(executor.running) + 1 < executor.limit:
            return executor
        if is_long:
            continue
        # Without interactive answers in the window there is nobody to be late.
        if not len(queue.response):
            return executor
        if 2 * expected <= set_point:
            return executor
    return None

"""Admits low-priority requests only when spare capacity keeps the SLA.

A running computation cannot be preempted. So a low-priority request starts only where the next
interactive one would still be in time: no interactive request of its model waits, the model keeps
its promise with some headroom, and either a slot stays free or two services fit into the set point.
"""

from typing import Final

from dispatcher.state.executor import Executor
from dispatcher.state.executors import Executors
from dispatcher.state.queues import ModelQueue

HEADROOM: Final = 0.8
"""Share of the set point that the measured response time may reach."""

RECHECK_INTERVAL: Final = 0.05
"""Seconds between two checks while low-priority requests wait: no event reports spare capacity."""


def executor_with_headroom(
    queue: ModelQueue, executors: Executors, now: float, *, is_long: bool
) -> Executor | None:
    """Return an executor that can take a low-priority request of a model now, or None.

    `queue` is the model's interactive one. The policies have already chosen: a GPU that still has
    room has nothing else to do. `is_long`: the request runs only where another slot stays free.
    """
    set_point = queue.spec.sla.set_point
    if queue.waiting or (queue.response.mean(now) or 0.0) > HEADROOM * set_point:
        return None
    for executor in executors.of(queue.spec.name):
        if not executor.has_room or executor.spec.is_planned:
            continue  # the policy of a planned device has room for requests that can wait
        if len(executor.running) + 1 < executor.limit:
            return executor
        fits_twice = 2 * (executor.expected(queue.spec.name) or 0.0) <= set_point
        # Without interactive answers in the window no interactive request can be late.
        if not is_long and (fits_twice or not len(queue.response)):
            return executor
    return None

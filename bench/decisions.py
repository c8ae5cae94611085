"""Cost of one scheduling decision: a GPU becomes free, the policy picks what runs next.

Two figures: the choice itself, and the whole event with all accounting (execution ended,
statistics, admission to the device, next one commanded).
"""

import time

from rich.console import Console

from bench.tables import new_table
from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from dispatcher.schedulers.base import Choice, Scheduler
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla

DECISIONS = 5000
CASES = [(10, 10), (10, 4000), (4000, 4000), (4000, 40000)]


def run() -> None:
    """Print µs per decision, choice / whole event, by policy and size."""
    sizes = [f"{models} models, {waiting} waiting" for models, waiting in CASES]
    title = "scheduling decision, µs: choice alone / whole event"
    table = new_table(title, "GPU policy", *sizes)
    for policy, chosen in registry.GPU.items():
        if chosen.request_aware:
            continue  # for planned devices only: `python -m bench fleet`
        cells = [decision_us(policy, m, w) for m, w in CASES]
        table.add_row(policy, *(f"{choice:.1f} / {event:.1f}" for choice, event in cells))
    Console().print(table)


def decision_us(policy: str, models: int, waiting: int) -> tuple[float, float]:
    """Return the mean costs in µs; new arrivals keep the queues at the same length."""
    specs = [ModelSpec(f"m{i}", Sla(0.1 + i / models), 1e9, 10**6) for i in range(models)]
    core = Dispatcher(specs, gpu=registry.GPU[policy], cpu=registry.CPU["round_robin"])
    core.handle(ExecutorAdded(ExecutorSpec("gpu", Device.GPU, tuple(core.queues))), now=0.0)
    core.handle(ExecutorReady("gpu"), now=0.0)
    now, execution, next_id = 0.0, 0, 0
    for i in range(waiting + 1):
        next_id += 1
        now += 1e-4
        request = Request(next_id, f"m{i % models}", now, 1e9)
        for command in core.handle(RequestArrived(request), now=now):
            assert isinstance(command, Execute)
            execution = command.execution
    choosing = _timed(core.policies.active[0])
    spent = 0.0
    for i in range(DECISIONS):
        now += 1e-3
        start = time.perf_counter()
        (command,) = core.handle(ExecutionEnded(execution, Result.OK), now=now)
        spent += time.perf_counter() - start
        assert isinstance(command, Execute)
        execution, next_id = command.execution, next_id + 1
        # The total must cover the decisions only; an arrival finds the GPU busy and asks too.
        before = choosing.total
        core.handle(RequestArrived(Request(next_id, f"m{i % models}", now, 1e9)), now=now)
        choosing.total = before
    # Each event asks twice: what runs, and then that nothing more can.
    return choosing.total / DECISIONS * 1e6, spent / DECISIONS * 1e6


class _Timed:
    """Adds up the time spent in a scheduler's `choose`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.total = 0.0
        self._choose = scheduler.choose

    def choose(self, now: float) -> Choice:
        start = time.perf_counter()
        choice = self._choose(now)
        self.total += time.perf_counter() - start
        return choice


def _timed(scheduler: Scheduler) -> _Timed:
    timed = _Timed(scheduler)
    # To time one method of a live object it must be replaced; nothing else is touched.
    scheduler.choose = timed.choose  # type: ignore[method-assign]
    return timed

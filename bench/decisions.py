"""What one scheduling decision costs: a GPU becomes free, the core picks what runs next."""

import time

from rich.console import Console
from rich.table import Table

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from roma.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.model import Device, ExecutorSpec, ModelSpec, Request, Sla

DECISIONS = 5000
CASES = [(10, 10), (10, 4000), (4000, 4000), (4000, 40000)]


def run() -> None:
    """Print µs per decision (end of one execution, start of the next) by policy and size."""
    table = Table(title="scheduling decision: µs per (execution ended → next one commanded)")
    table.add_column("GPU policy")
    for models, waiting in CASES:
        table.add_column(f"{models} models, {waiting} waiting", justify="right")
    for policy in registry.GPU:
        table.add_row(policy, *(f"{decision_us(policy, m, w):.1f}" for m, w in CASES))
    Console().print(table)


def decision_us(policy: str, models: int, waiting: int) -> float:
    """Return the mean cost in µs, the queues kept at the same length by new arrivals."""
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
    spent = 0.0
    for i in range(DECISIONS):
        now += 1e-3
        start = time.perf_counter()
        (command,) = core.handle(ExecutionEnded(execution, Result.OK), now=now)
        spent += time.perf_counter() - start
        assert isinstance(command, Execute)
        execution, next_id = command.execution, next_id + 1
        core.handle(RequestArrived(Request(next_id, f"m{i % models}", now, 1e9)), now=now)
    return spent / DECISIONS * 1e6

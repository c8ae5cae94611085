"""Cost of one supervisor tick: reports in, laws, sharing, allocations out."""

import time
from statistics import median

from rich.console import Console

from bench.tables import new_table
from controllers import registry
from roma.domain.exchange import ExchangeReply, ExecutorReport, ModelReport
from roma.domain.model import ModelSpec, Sla
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading

TICKS = 50


def run() -> None:
    """Print ms per tick for 200 models, by law, with enough cores and in a shortage."""
    title = "supervisor tick, 200 models: ms (median of 50)"
    table = new_table(title, "law", "enough cores", "shortage")
    for law in registry.LAWS:
        table.add_row(law, *(f"{tick_ms(law, capacity):.2f}" for capacity in (1000.0, 20.0)))
    Console().print(table)


def tick_ms(law: str, capacity: float, models: int = 200) -> float:
    """Return the median time of one tick in ms."""
    managed = [
        Managed(f"m{i}@w", ModelSpec(f"m{i}", Sla(0.5), 1.0), 0.05, 4.0, initial=1.0)
        for i in range(models)
    ]
    core = Supervisor(managed, registry.build(law, {}), capacity=capacity)
    times = []
    for tick in range(1, TICKS + 1):
        reports = tuple(_report(f"m{i}", tick) for i in range(models))
        executors = tuple(ExecutorReport(m.name, "busy", 1, 10 * tick) for m in managed)
        replies = {"d": ExchangeReply("e", reports, executors)}
        readings = {m.name: Reading(1.0, 0.5 * tick, tick, 0) for m in managed}
        start = time.perf_counter()
        commands = core.tick(replies, readings, now=float(tick))
        times.append(time.perf_counter() - start)
        for command in commands:
            core.on_applied(command.executable, command.cores)
    return median(times) * 1000


def _report(model: str, tick: int) -> ModelReport:
    return ModelReport(
        model=model,
        arrivals=10 * tick,
        completed_cpu=10 * tick,
        completed_gpu=0,
        failed=0,
        invalid=0,
        cancelled=0,
        late=0,
        rejected={},
        waiting=2,
        in_flight=1,
        oldest_age=0.1,
        response_time=0.3,
        mean_time=0.3,
    )

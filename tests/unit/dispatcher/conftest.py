import pytest

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import (
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla


class DispatcherHarness:
    """A dispatcher core and short words for its events; checks its state on exit."""

    def __init__(self) -> None:
        self.core = None
        self.next_id = 0

    def build(
        self, *models, gpu="roma", cpu="round_robin", beta=0.5, spill=0.0, window=1.0, reaction=0.0
    ):
        specs = [m if isinstance(m, ModelSpec) else model(m) for m in models]
        self.core = Dispatcher(
            specs,
            gpu=registry.GPU.get(gpu, gpu) if isinstance(gpu, str) else gpu,
            cpu=registry.CPU[cpu] if isinstance(cpu, str) else cpu,
            options=SchedulingConfig(beta=beta, spill=spill),
            window=window,
            reaction=reaction,
            grace=reaction,
        )
        return self.core

    def cpu(self, name, model_name, *, cores=1.0, threads=1, now=0.0, **more):
        spec = ExecutorSpec(name, Device.CPU, (model_name,), threads=threads, cores=cores, **more)
        self.core.handle(ExecutorAdded(spec), now=now)
        return self.core.handle(ExecutorReady(name), now=now)

    def on_cpu(self, model="m", **executor):
        """Make a core with one model, `m`, on one executable, `m@w`."""
        self.build(model)
        self.cpu("m@w", "m", **executor)
        return self.core

    def gpu(self, name="gpu", now=0.0):
        spec = ExecutorSpec(name, Device.GPU, tuple(self.core.queues))
        self.core.handle(ExecutorAdded(spec), now=now)
        return self.core.handle(ExecutorReady(name), now=now)

    def arrive(self, model_name, now, *, deadline=None, **request):
        self.next_id += 1
        limit = self.core.queues[model_name].spec.deadline if deadline is None else deadline
        arrived = Request(self.next_id, model_name, now, now + limit, **request)
        return self.core.handle(RequestArrived(arrived), now=now)

    def serve(self, model_name, now, until, result=Result.OK):
        """Let a request start at once, and end; return the command that started it."""
        (command,) = self.arrive(model_name, now)
        self.core.handle(ExecutionEnded(command.execution, result), now=until)
        return command

    def check(self):
        core = self.core
        running = [r.id for e in core.running() for r in e.requests]
        queues = [*core.queues.values(), *core.low_priority.values()]
        waiting = [r for q in queues for r in q.waiting]
        assert len(set(running + waiting)) == len(running) + len(waiting)
        assert set(core._requests.live) <= set(running + waiting)
        for queue in queues:
            total = sum(r.arrived for r in queue.waiting.values())
            assert queue._arrived_sum == pytest.approx(total, abs=1e-6)
            arrivals = [r.arrived for r in queue.waiting.values()]
            assert arrivals == sorted(arrivals)
        for executor in core.executors:
            assert set(executor.running) <= set(core._executions.running)


def model(name, response_time=1.0, *, alpha=1.0, deadline=100.0, max_waiting=1000):
    return ModelSpec(name, Sla(response_time, alpha=alpha), deadline, max_waiting)


@pytest.fixture
def harness():
    harness = DispatcherHarness()
    yield harness
    harness.check()

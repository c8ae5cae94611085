"""A dispatcher core with two variants of one model, events in and commands out."""

from dispatcher.core import Dispatcher
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.config.scheduling import QualityConfig, SchedulingConfig
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla
from roma.domain.variants import Variant

FULL, TINY = Variant("full", 1.0), Variant("tiny", 0.5)
# The paper's p2 (Table 1), in seconds.
RUNS = {
    "full": {1: 0.069, 2: 0.106, 4: 0.165, 8: 0.282, 16: 0.508, 32: 0.944},
    "tiny": {1: 0.042, 2: 0.056, 4: 0.063, 8: 0.088, 16: 0.146, 32: 0.244},
}


class VariantsHarness:
    """A core with one model of two variants, and short words for its events."""

    def __init__(self, policy, variants=(FULL, TINY), *, any_batch=False, **quality):
        spec = ModelSpec("yolo", Sla(1.0), deadline=2.0, variants=variants)
        options = SchedulingConfig(latency=0.0, quality=QualityConfig(**quality))
        self.core = Dispatcher([spec], gpu=policy, cpu=CpuRoundRobin, options=options)
        self.any_batch = any_batch
        self.requests = 0

    def device(self, name="gpu", *, factor=1.0, pages=9, loaded=("full", "tiny"), now=0.0):
        offers = {
            model: ModelCapabilities(
                1, 0.1, {b: factor * t for b, t in runs.items()}, self.any_batch
            )
            for model, runs in RUNS.items()
        }
        spec = ExecutorSpec(name, Device.GPU, ("yolo",), is_planned=True)
        if name not in self.core.executors:
            self.core.handle(ExecutorAdded(spec), now=now)
        return self.core.handle(ExecutorReady(name, Capabilities(pages, offers, loaded)), now=now)

    def arrive(self, now, terms=None, *, hard=2.0):
        self.requests += 1
        request = Request(self.requests, "yolo", now, now + hard, terms=terms)
        return executes(self.core.handle(RequestArrived(request), now=now))

    def end(self, execution, now):
        return executes(self.core.handle(ExecutionEnded(execution, Result.OK), now=now))


def with_device(policy, *, pages=9, loaded=("full", "tiny"), **options):
    """Return a harness with one device, "gpu"."""
    harness = VariantsHarness(policy, **options)
    harness.device(pages=pages, loaded=loaded)
    return harness


def executes(commands):
    return [c for c in commands if isinstance(c, Execute)]


def busy(policy, waiting, *, until, **quality):
    """A rig whose device is busy with request 1 while others arrive evenly; the next choice."""
    harness = with_device(policy, **quality)
    (first,) = harness.arrive(0.0)
    for i in range(waiting):
        assert not harness.arrive(until * i / waiting)
    (chosen,) = harness.end(first.execution, until)
    return chosen

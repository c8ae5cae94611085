"""A dispatcher core under `clockwork`, events in and commands out."""

from dispatcher.core import Dispatcher
from dispatcher.schedulers.clockwork.policy import Clockwork
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorReady,
    LoadEnded,
    RequestArrived,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla

RUNS = {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.040}
LOAD = 0.020
SLO = 1.0


class ClockworkHarness:
    """A core under `clockwork`, one device or more, and short words for its events."""

    def __init__(self, models="ab", *, policy=Clockwork, ahead=0.005, latency=0.0):
        specs = [ModelSpec(name, Sla(SLO), deadline=SLO) for name in models]
        self.core = Dispatcher(
            specs,
            gpu=policy,
            cpu=CpuRoundRobin,
            options=SchedulingConfig(ahead=ahead, latency=latency),
        )
        self.models = {name: ModelCapabilities(2, LOAD, RUNS) for name in models}
        self.requests = 0

    def device(self, name="gpu", *, pages=100, loaded=(), now=0.0):
        spec = ExecutorSpec(name, Device.GPU, tuple(self.models), is_planned=True)
        if name not in self.core.executors:
            self.core.handle(ExecutorAdded(spec), now=now)
        return self.core.handle(
            ExecutorReady(name, Capabilities(pages, self.models, tuple(loaded))), now=now
        )

    def demands(self, name="gpu"):
        return self.core.executors[name].planned

    def arrive(self, model, now, slo=SLO, **kw):
        self.requests += 1
        request = Request(self.requests, model, now, now + slo, **kw)
        return self.core.handle(RequestArrived(request), now=now)

    def burst(self, model, count, now, **request):
        """Let requests come a microsecond after one another."""
        for i in range(count):
            self.arrive(model, now + i / 1e6, **request)

    def end(self, execution, now, duration=None):
        return self.core.handle(ExecutionEnded(execution, Result.OK, duration), now=now)

    def loaded(self, load, now):
        return self.core.handle(LoadEnded(load, True, LOAD), now=now)

    def wake(self):
        now = self.core.next_wakeup()
        return now, self.core.handle(Woken(), now=now)


def with_device(models="ab", *, pages=100, loaded=(), **options):
    """Return a harness with one device, "gpu"."""
    harness = ClockworkHarness(models, **options)
    harness.device(pages=pages, loaded=loaded)
    return harness


def executes(commands):
    return [c for c in commands if isinstance(c, Execute)]


def batch(commands):
    """The requests of the only batch among the commands."""
    (execute,) = executes(commands)
    return execute.requests

"""A supervisor core, and what dispatchers and the kernel tell it."""

from dataclasses import replace

from controllers import registry
from roma.domain.exchange import (
    ExchangeReply,
    ExecutorReport,
    ModelReport,
)
from roma.domain.model import ModelSpec, Sla
from supervisor.core import Supervisor
from supervisor.executables import Managed, Reading

M = ModelSpec("m", Sla(0.5), deadline=1.0)


def report(model="m", **changes):
    """Return what a dispatcher tells of a model: nothing yet, but for these fields."""
    base = ModelReport(
        model=model,
        arrivals=0,
        completed_cpu=0,
        completed_gpu=0,
        failed=0,
        invalid=0,
        cancelled=0,
        late=0,
        rejected={},
        waiting=0,
        in_flight=0,
        oldest_age=0.0,
        response_time=None,
        mean_time=changes.get("response_time"),
    )
    return replace(base, **changes)


def reply(*models, epoch="e1", completed=0, state="busy", executor="m@w", in_flight=0):
    """Return a dispatcher's answer about models and one executable."""
    executors = (ExecutorReport(executor, state, in_flight, completed),)
    return ExchangeReply(epoch, tuple(models) or (report(),), executors)


def build(law="late_share", gains=None, *, capacity=4.0, managed=None, **more):
    """Return the core of a worker with one executable, unless `managed` are others."""
    managed = managed or [Managed("m@w", M, 0.1, 4.0, initial=1.0)]
    return Supervisor(managed, registry.build(law, gains or {}), capacity=capacity, **more)


def several(*names, initial=4.0):
    """Return executables of a model each, which is called as their first letter."""
    return [Managed(n, replace(M, name=n[0]), 0.1, 4.0, initial=initial) for n in names]


def reading(cores=1.0, usage=0.0, periods=0, throttled=0):
    """Return what the kernel tells of a cgroup."""
    return Reading(cores, usage, periods, throttled)


class World:
    """An executable under a constant load, one dispatcher; confirms what is applied."""

    def __init__(self, core, *, rate=10, cost=0.05):
        self.core, self.rate, self.cost = core, rate, cost
        self.now, self.arrivals, self.cores = 0.0, 0, 1.0
        self.epoch = "e1"

    def tick(self, *, confirm=True, silent=False, dt=1.0, unreadable=False, **changes):
        self.now += dt
        self.arrivals += round(self.rate * dt)
        m = report(arrivals=self.arrivals, completed_cpu=self.arrivals, response_time=0.4)
        answer = reply(replace(m, **changes), completed=self.arrivals, epoch=self.epoch)
        seen = reading(self.cores, usage=self.arrivals * self.cost)
        commands = self.core.tick(
            {"d": None if silent else answer},
            {"m@w": None if unreadable else seen},
            now=self.now,
        )
        for command in commands:
            if confirm:
                self.cores = command.cores
                self.core.on_applied(command.executable, command.cores)
        return commands

    def ticks(self, count):
        """Let as many periods pass; return itself."""
        for _ in range(count):
            self.tick()
        return self

    @property
    def status(self):
        return self.core.status["m@w"]

    @property
    def last(self):
        return self.status.decisions[-1]

    @property
    def why(self):
        return self.last.demand.why

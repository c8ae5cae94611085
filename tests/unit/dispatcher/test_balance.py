"""The CPU policy `balance` follows events: it must know what one made of the present state would."""

from random import Random

import pytest

from dispatcher.core import Dispatcher
from dispatcher.schedulers.balance import CpuBalance
from dispatcher.schedulers.gpu_savings_first import GpuSavingsFirst
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import (
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    RequestArrived,
    Result,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla

MODELS = {"a": 0.02, "b": 0.1, "c": 0.4}
"""Core-seconds of a request; a GPU takes a tenth of them in seconds."""


class Machine:
    """Three models on CPUs, and a GPU that comes and goes."""

    def __init__(self, seed):
        self.random, self.now, self.last, self.running = Random(seed), 0.0, 0, {}
        specs = [ModelSpec(name, Sla(0.5), 5.0, cost=cost) for name, cost in MODELS.items()]
        self.options = SchedulingConfig()
        self.core = Dispatcher(specs, gpu=GpuSavingsFirst, cpu=CpuBalance, options=self.options)
        for name in MODELS:
            for replica in ("", "+1"):
                spec = ExecutorSpec(f"{name}{replica}@w", Device.CPU, (name,), cores=1.0)
                self.feed(ExecutorAdded(spec), ExecutorReady(spec.name))
        self.feed(ExecutorAdded(ExecutorSpec("gpu", Device.GPU, tuple(MODELS))))

    def feed(self, *events):
        for event in events:
            for command in self.core.handle(event, now=self.now):
                if isinstance(command, Execute):
                    self.running[command.execution] = command

    def step(self):
        self.now += self.random.expovariate(40.0)
        kind = self.random.random()
        gpu = self.core.executors["gpu"]
        if kind < 0.55:
            self.last += 1
            model = self.random.choice(list(MODELS))
            self.feed(RequestArrived(Request(self.last, model, self.now, self.now + 5.0)))
        elif kind < 0.9 and self.running:
            self.feed(ExecutionEnded(self.running.popitem()[0], Result.OK))
        elif kind < 0.95:
            name = self.random.choice([e.spec.name for e in self.core.executors if e is not gpu])
            self.feed(CoresApplied(name, self.random.choice((0.5, 1.0, 2.0))))
        elif gpu.live:
            lost = [n for n, e in self.running.items() if e.executor == "gpu"]
            self.feed(ExecutorLost("gpu"))
            for number in lost:
                self.running.pop(number, None)
        else:
            self.feed(ExecutorReady("gpu"))


@pytest.mark.parametrize("seed", range(20))
def test_it_knows_what_one_made_of_the_present_state_would(seed):
    machine, with_gpu, held = Machine(seed), 0, 0
    for _ in range(300):
        machine.step()
        core, now = machine.core, machine.now
        fresh = CpuBalance(core.policies.state, machine.options)
        for queue in core.queues.values():
            fresh.on_queue(queue, now)
        for executor in core.executors:
            fresh.on_executor(executor, now)
        known = core.policies.by_device[Device.CPU].choose(now)
        assert known == fresh.choose(now)
        with_gpu += core.executors["gpu"].live
        held += known is not None
    assert 0 < with_gpu < 300
    assert held

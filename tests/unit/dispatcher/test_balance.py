"""The CPU policy `balance` follows events: it chooses what one made of the present state would."""

from collections import Counter
from random import Random
from typing import ClassVar

from dispatcher.core import Dispatcher
from dispatcher.schedulers.balance import CpuBalance
from dispatcher.schedulers.base import TICK, RunChoice, Scheduler, WaitUntil
from dispatcher.schedulers.gpu_savings_first import GpuSavingsFirst
from dispatcher.state.request_cost import TRIAL_SHARE
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import (
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    RequestArrived,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla
from tests.unit.dispatcher.conftest import model

MODELS = {"a": 0.02, "b": 0.1, "c": 0.4}
"""Core-seconds of a request, by model."""


def overflow(policy, now):
    """Return what the module's docstring chooses beside GPUs, by sorting and adding up."""
    gpus, ahead, dues = policy._gpus, 0.0, []
    waiting = [b for b in policy._backlogs if policy.state.queues[b.model].waiting]
    for backlog in sorted(waiting, key=lambda b: -b.saving):
        queue = policy.state.queues[backlog.model]
        arrived, sla = queue.youngest.arrived, queue.spec.sla.response_time
        gpu_time = policy.state.executors.gpu_time(backlog.model)
        ahead += gpu_time * len(queue.waiting)
        if not backlog.free:
            continue
        measured = backlog.fastest.expected(backlog.model)
        service = queue.spec.cost / backlog.fastest.share if measured is None else measured
        least = (backlog.fastest.work(backlog.model) or 0.0) / backlog.fastest.most[1]
        is_trial = least > sla and now - backlog.tried >= least / TRIAL_SHARE
        if now - arrived + service > sla and not is_trial:
            continue
        due = arrived + policy.options.spill * sla - (ahead - gpu_time) / len(gpus)
        if due <= min(gpu.free_at(now) for gpu in gpus) + TICK:
            return RunChoice(backlog.fastest.spec.name, backlog.model, youngest=True)
        dues.append(due)
    return WaitUntil(min(dues)) if dues else None


class Compared(Scheduler):
    """`balance`, each choice compared with that of one that is made for it."""

    choices: ClassVar[Counter] = Counter()

    def __init__(self, state, options):
        super().__init__(state, options)
        self.known = CpuBalance(state, options)

    def on_queue(self, queue, now):
        self.known.on_queue(queue, now)

    def on_executor(self, executor, now):
        self.known.on_executor(executor, now)

    def choose(self, now):
        known, fresh = self.known, CpuBalance(self.state, self.options)
        for ours, theirs in zip(fresh._backlogs, known._backlogs, strict=True):
            # Of replicas with as many cores, the one that has had room for longest is the first.
            ours.free = dict(theirs.free)
            ours.tried = theirs.tried
            ours.saving = theirs.saving  # it follows measurements only beyond `DRIFT`
        for queue in self.state.queues.values():
            fresh.on_queue(queue, now)
        for executor in self.state.executors:
            fresh.on_executor(executor, now)
        expected = [fresh.choose(now), overflow(known, now)] if known._gpus else [fresh.choose(now)]
        choice = known.choose(now)
        assert expected == [choice] * len(expected)
        self.choices[bool(known._gpus), type(choice)] += 1
        return choice


class Machine:
    """Three models on CPUs, and a GPU; all but the models come and go."""

    def __init__(self, seed):
        self.random, self.now, self.last, self.running = Random(seed), 0.0, 0, {}
        specs = [ModelSpec(name, Sla(0.5), 5.0, cost=cost) for name, cost in MODELS.items()]
        self.options = SchedulingConfig()
        self.core = Dispatcher(specs, gpu=GpuSavingsFirst, cpu=Compared, options=self.options)
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
        elif kind < 0.93:
            name = self.random.choice([e.spec.name for e in self.core.executors if e is not gpu])
            self.feed(CoresApplied(name, self.random.choice((0.5, 1.0, 2.0))))
        elif kind < 0.96:
            self.replace(self.random.choice([e for e in self.core.executors if e is not gpu]))
        elif gpu.live:
            self.lose("gpu", ExecutorLost("gpu"))
        else:
            self.feed(ExecutorReady("gpu"))

    def replace(self, executor):
        spec = executor.spec
        self.lose(spec.name, ExecutorRemoved(spec.name))
        self.feed(ExecutorAdded(spec), ExecutorReady(spec.name))

    def lose(self, name, event):
        self.running = {n: e for n, e in self.running.items() if e.executor != name}
        self.feed(event)


def test_it_chooses_what_one_made_of_the_present_state_would():
    Compared.choices.clear()
    for seed in range(20):
        machine = Machine(seed)
        for _ in range(300):
            machine.step()
    found = Compared.choices
    assert min(found[gpu, RunChoice] for gpu in (False, True)) > 100
    assert found[True, WaitUntil] > 100


def test_a_gpu_that_left_while_there_was_no_cpu_holds_no_request_back(harness):
    core = harness.build(model("m"), gpu="gpu_savings_first", cpu="balance", spill=0.2)
    harness.cpu("m@w", "m")
    harness.gpu()
    for name in ("m@w", "gpu"):
        core.handle(ExecutorRemoved(name), now=1.0)
    harness.cpu("m@w", "m", now=2.0)
    (execute,) = harness.arrive("m", 3.0)
    assert execute.executor == "m@w"


def test_a_replica_that_was_slow_for_a_while_is_tried_again(harness):
    core = harness.build(model("m"), gpu="gpu_savings_first", cpu="balance", spill=0.2)
    harness.gpu()
    harness.cpu("m@w", "m")
    harness.serve("m", 0.0, 0.3)  # by the GPU

    def spill(now):
        """Let two requests come at once; return what runs beside the GPU once the second is due."""
        (on_gpu,) = harness.arrive("m", now)
        found = [c for c in harness.arrive("m", now) if isinstance(c, Execute)]
        found += [c for c in core.handle(Woken(), now=now + 0.2) if isinstance(c, Execute)]
        left = core.handle(ExecutionEnded(on_gpu.execution, Result.OK), now=now + 0.3)
        for execution in left:
            core.handle(ExecutionEnded(execution.execution, Result.OK), now=now + 0.6)
        return [execution.execution for execution in found]

    (slow,) = spill(1.0)
    core.handle(ExecutionEnded(slow, Result.OK), now=3.0)  # 2 s, under a promise of 1 s
    (slow,) = spill(4.0)
    core.handle(ExecutionEnded(slow, Result.OK), now=6.0)
    for now in (10.0, 500.0, 1000.0):  # one in 500 s for each second that it would take
        assert not spill(now)
    (tried,) = spill(1010.0)
    core.handle(ExecutionEnded(tried, Result.OK), now=1010.4)

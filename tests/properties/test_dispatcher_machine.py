"""The dispatcher core under any sequence of events: every admitted request ends exactly once."""

from collections import Counter, defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from roma.config.scheduling import SchedulingConfig
from roma.domain.events import (
    Abort,
    CoresApplied,
    Execute,
    ExecutionEnded,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    ExecutorSuspected,
    Fail,
    ModelAdded,
    ModelRemoved,
    ModelsMissing,
    Reject,
    RequestArrived,
    RequestCancelled,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Priority, Request, Sla
from tests.support.examples import examples

MODELS = ("a", "b", "c")
EXECUTORS = ("a@1", "a@2", "b@1", "c@1", "gpu@1", "gpu@2")


class DispatcherMachine(RuleBasedStateMachine):
    """Plays driver, clients and executables; keeps accounts of its own."""

    @initialize(
        # Those of planned devices have a machine of their own: none is here.
        gpu=st.sampled_from(sorted(n for n, p in registry.GPU.items() if not p.request_aware)),
        cpu=st.sampled_from(sorted(registry.CPU)),
        spill=st.sampled_from([0.0, 0.3]),
        costs=st.sampled_from([None, 0.3]),
        cores=st.lists(st.sampled_from([0.1, 1.0, 2.5]), min_size=6, max_size=6),
    )
    def build(self, gpu, cpu, spill, costs, cores):
        models = [
            ModelSpec(m, Sla(0.5 * (i + 1)), deadline=1.0 + i, max_waiting=6, cost=costs)
            for i, m in enumerate(MODELS)
        ]
        self.specs = {spec.name: spec for spec in models}
        self.now = 0.0
        self.holds = spill > 0 or cpu == "balance"
        self.core = Dispatcher(
            models,
            gpu=registry.GPU[gpu],
            cpu=registry.CPU[cpu],
            options=SchedulingConfig(spill=spill),
        )
        self.live = dict.fromkeys(EXECUTORS, False)
        self.suspects = set()
        self.arrived = {}
        self.ended = Counter()
        self.running = {}
        self.order = defaultdict(list)
        for name, c in zip(EXECUTORS, cores, strict=True):
            self.add(name, c)

    def add(self, name, cores=1.0):
        device = Device.GPU if name.startswith("gpu") else Device.CPU
        held = tuple(self.core.queues) if device is Device.GPU else (name[0],)
        self.live[name] = False
        self.feed(ExecutorAdded(ExecutorSpec(name, device, held, cores=cores)))

    def feed(self, event):
        for command in self.core.handle(event, now=self.now):
            match command:
                case Execute(execution, executor, model, requests):
                    if self.arrived[requests[0]].priority is Priority.LOW:
                        assert not self.core.queues[model].waiting
                    assert self.live[executor]
                    assert model not in self.core.executors[executor].missing
                    assert executor not in self.suspects
                    assert not any(self.ended[r] for r in requests)
                    self.running[execution] = (executor, requests)
                case Reject(request) | Fail(request):
                    self.ended[request] += 1
                case Abort(execution):
                    del self.running[execution]

    @rule(dt=st.sampled_from([0.0, 0.001, 0.1, 0.7, 3.0]))
    def time_passes(self, dt):
        end = self.now + dt
        while (wakeup := self.core.next_wakeup()) is not None and wakeup <= end:
            self.now = max(self.now, wakeup)
            self.feed(Woken())
            after = self.core.next_wakeup()
            assert after is None or after > wakeup or after > self.now  # no busy loop
        self.now = end

    @precondition(lambda self: len(self.core.queues) > 1)
    @rule(data=st.data())
    def remove_model(self, data):
        model = data.draw(st.sampled_from(sorted(self.core.queues)))
        for name in [e.spec.name for e in self.core.executors if e.spec.models == (model,)]:
            self.live[name] = False
            self.suspects.discard(name)
        self.feed(ModelRemoved(model))
        assert model not in self.core.queues
        assert all(e.model != model for e in self.core.running())

    @precondition(lambda self: len(self.core.queues) < len(MODELS))
    @rule(data=st.data())
    def add_model(self, data):
        model = data.draw(st.sampled_from(sorted(set(MODELS) - set(self.core.queues))))
        gpus = [e.spec.name for e in self.core.executors.gpus]
        for name in gpus:
            self.live[name] = False
            self.suspects.discard(name)
            self.feed(ExecutorRemoved(name))
        self.feed(ModelAdded(self.specs[model]))
        for name in [n for n in EXECUTORS if n[0] == model] + gpus:
            self.add(name)

    @rule(
        model=st.sampled_from(MODELS),
        deadline=st.sampled_from([0.2, 1.0, 5.0]),
        strict=st.booleans(),
        priority=st.sampled_from(Priority),
    )
    def arrive(self, model, deadline, strict, priority):
        if model not in self.core.queues:
            return  # the gateway answers 404
        end = self.now + deadline
        number = len(self.arrived) + 1
        request = Request(number, model, self.now, end, strict=strict, priority=priority)
        self.arrived[request.id] = request
        self.feed(RequestArrived(request))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), result=st.sampled_from(Result))
    def finish(self, data, result):
        execution = data.draw(st.sampled_from(sorted(self.running)))
        _, requests = self.running.pop(execution)
        for request in requests:
            if not self.ended[request]:  # a cancelled one has ended already
                self.ended[request] += 1
        self.feed(ExecutionEnded(execution, result))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), gone=st.booleans())
    def unreached(self, data, gone):
        execution = data.draw(st.sampled_from(sorted(self.running)))
        executor, _ = self.running.pop(execution)
        if gone and all(other != executor for other, _ in self.running.values()):
            self.live[executor] = False
            self.suspects.discard(executor)
        elif self.live[executor]:
            self.suspects.add(executor)
        # The core may give the request to another executor, which must be live.
        self.feed(ExecutionUnreachable(execution, gone))

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(sorted(self.arrived)))
        if not self.ended[request]:
            self.ended[request] += 1
        self.feed(RequestCancelled(request))

    @rule(executor=st.sampled_from(EXECUTORS))
    def ready(self, executor):
        if executor not in self.core.executors:
            return
        if not self.live[executor] or executor in self.suspects:
            self.live[executor] = True
            self.suspects.discard(executor)
            self.feed(ExecutorReady(executor))

    @rule(executor=st.sampled_from(EXECUTORS))
    def suspect(self, executor):
        if executor not in self.core.executors:
            return
        if self.live[executor]:
            self.suspects.add(executor)
        self.feed(ExecutorSuspected(executor))

    @rule(executor=st.sampled_from(EXECUTORS))
    def lose(self, executor):
        if self.live[executor]:
            self.live[executor] = False
            self.suspects.discard(executor)
            self.feed(ExecutorLost(executor))

    @rule(executor=st.sampled_from(EXECUTORS), data=st.data())
    def miss(self, executor, data):
        """The server of a GPU serves all its models but some."""
        if self.live[executor] and len(models := self.core.executors[executor].spec.models) > 1:
            missing = data.draw(st.sets(st.sampled_from(models), max_size=len(models) - 1))
            self.feed(ModelsMissing(executor, tuple(missing)))

    @rule(
        executor=st.sampled_from(EXECUTORS[:4]),
        cores=st.sampled_from([0.1, 1.0, 2.5, 4.0]),
        cost=st.sampled_from([None, 0.001, 1.0]),
    )
    def resize(self, executor, cores, cost):
        if executor not in self.core.executors:
            return
        before = len(self.core.executors[executor].running)
        self.feed(CoresApplied(executor, cores, cost=cost))
        limit = self.core.executors[executor].limit
        assert len(self.core.executors[executor].running) <= max(before, limit)

    @rule()
    def late_echo(self):
        self.feed(ExecutionEnded(10**9, Result.OK))

    @invariant()
    def every_request_waits_runs_or_ended_once(self):
        waiting = {r for q in self.queues() for r in q.waiting}
        running = {r for _, requests in self.running.values() for r in requests}
        for request in self.arrived:
            places = (request in waiting) + (request in running and not self.ended[request])
            assert places + min(1, self.ended[request]) == 1, request
            assert self.ended[request] <= 1, request

    def queues(self):
        return [*self.core.queues.values(), *self.core.low_priority.values()]

    @invariant()
    def waiting_requests_stand_in_order_of_arrival(self):
        for queue in self.queues():
            ids = list(queue.waiting)
            assert ids == sorted(ids)

    @invariant()
    def nothing_waits_while_a_device_that_may_run_it_is_free(self):
        gpus = [e for e in self.core.executors if e.spec.device is Device.GPU]
        for queue in self.core.queues.values():
            if not queue:
                continue
            on_gpus = queue.spec.name not in self.core.executors.off_gpus
            assert not on_gpus or not any(gpu.has_room for gpu in gpus)
            free = [
                e
                for e in self.core.executors.of(queue.spec.name)
                if e.spec.device is Device.CPU and e.has_room
            ]
            held_by_spill = self.holds and any(gpu.live for gpu in gpus) and on_gpus
            assert not free or held_by_spill

    @invariant()
    def books_balance(self):
        for queue in self.queues():
            ended = sum(queue.completed.values()) + sum(queue.rejected.values())
            ended += queue.failed + queue.cancelled
            assert queue.invalid <= sum(queue.completed.values())
            batch = queue is self.core.low_priority.get(queue.spec.name)
            own = [t.request for t in self.core._requests.live.values()]
            own = [r for r in own if (r.priority is Priority.LOW) == batch]
            live = sum(r.model == queue.spec.name for r in own)
            assert queue.arrivals == ended + live


DispatcherMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None
)
TestDispatcherMachine = DispatcherMachine.TestCase

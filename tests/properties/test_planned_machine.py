"""`clockwork` and planned devices under any sequence of events, in virtual time.

The devices are the production rules (`roma.device.core`); this machine is clock, clients, cables
and accidents. Whatever comes: nothing begins outside its window, memory is never over-committed,
both sides agree on it, every request ends exactly once, and in time unless a device was late.
"""

import heapq
import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dispatcher.core import Dispatcher
from dispatcher.schedulers.base import TICK
from dispatcher.schedulers.clockwork.policy import Clockwork, ClockworkPaper
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.config.scheduling import SchedulingConfig
from roma.device.core import Begin, DeviceCore
from roma.domain.actions import (
    ActionStatus,
    Capabilities,
    Discard,
    Infer,
    Load,
    ModelCapabilities,
    Unload,
)
from roma.domain.events import (
    Abort,
    DiscardResults,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    Fail,
    LoadEnded,
    LoadModel,
    ModelAdded,
    ModelRemoved,
    ModelsAssigned,
    Reject,
    RequestArrived,
    RequestCancelled,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Priority, Request, Sla
from tests.support.clockwork import RUNS
from tests.support.examples import examples

MODELS = {
    "a": ModelCapabilities(1, 0.010, RUNS),
    "b": ModelCapabilities(2, 0.020, RUNS),
    "c": ModelCapabilities(3, 0.030, {n: 2 * t for n, t in RUNS.items()}),
    "d": ModelCapabilities(1, 0.005, {1: 0.001, 2: 0.0015}),
}
DEVICES = ("g0", "g1", "g2")


class Devices(RuleBasedStateMachine):
    """Three devices, and what happens to them; whose rules these are chooses `build` and `check`."""

    offers = MODELS
    """By the name under which a device has it."""
    together = 1

    def begin(self, specs, pages, **chosen):
        self.specs = {spec.name: spec for spec in specs}
        self.core = Dispatcher(specs, cpu=CpuRoundRobin, **chosen)
        self.now, self.sequence, self.agenda = 0.0, itertools.count(), []
        self.ids = itertools.count(1)
        self.requests, self.ended, self.running = {}, Counter(), {}
        self.pages = dict(zip(DEVICES, pages, strict=True))
        self.workers, self.versions, self.late = {}, Counter(), dict.fromkeys(DEVICES, 0.0)
        self.group = {name: [] for name in DEVICES}
        self.was_late = False
        for name in DEVICES:
            spec = ExecutorSpec(name, Device.GPU, tuple(self.core.queues), is_planned=True)
            self.feed(ExecutorAdded(spec))
            self.appear(name)

    def check(self, command):
        """Check a batch before it is sent."""
        assert not any(self.ended[request] for request in command.requests)

    def check_answer(self, request):
        """Check an answer."""

    def appear(self, name):
        worker = self.workers[name] = DeviceCore(
            self.pages[name], {m: o.pages for m, o in self.offers.items()}
        )
        self.group[name] = []
        loaded = tuple(worker.loaded)
        self.feed(
            ExecutorReady(name, Capabilities(worker.pages, self.offers, loaded, self.together))
        )

    def feed(self, event):
        for command in self.core.handle(event, now=self.now):
            match command:
                case Execute(execution, executor, _, requests, window):
                    first, last = window
                    assert first <= self.now <= last
                    taken = {r for running in self.running.values() for r in running}
                    assert taken.isdisjoint(requests)
                    self.check(command)
                    self.running[execution] = requests
                    infer = Infer(
                        execution, command.variant, command.size, first, last, command.part
                    )
                    self.give(executor, infer)
                case LoadModel(load, executor, model, latest):
                    self.give(executor, Load(load, model, self.now, latest))
                case UnloadModel(executor, model):
                    self.give(executor, Unload(0, model))
                case DiscardResults(executor, model, execution):
                    self.give(executor, Discard(0, model, execution))
                case Reject(request) | Fail(request):
                    self.ended[request] += 1
                case Abort(execution):
                    del self.running[execution]

    def ask(self, model, slo, **more):
        if model not in self.core.queues:
            return  # it was removed
        number = next(self.ids)
        self.requests[number] = request = Request(number, model, self.now, self.now + slo, **more)
        self.feed(RequestArrived(request))

    def give(self, name, action):
        # Cables take no time, but nobody answers in the middle of a command.
        self.later(self.now, lambda v=self.versions[name]: self.take(name, v, action))

    def take(self, name, version, action):
        if version != self.versions[name]:
            return
        if isinstance(action, Infer) and action.part is not None:
            self.group[name].append(action)
            if not action.part.with_next:
                group, self.group[name] = self.group[name], []
                self.follow(name, self.workers[name].submit_together(group, self.now))
            return
        self.follow(name, self.workers[name].submit(action, self.now))

    def later(self, time, act):
        heapq.heappush(self.agenda, (time, next(self.sequence), act))

    def follow(self, name, steps):
        version = self.versions[name]
        for step in steps:
            if isinstance(step, Begin):
                action = step.action
                offer = self.offers[action.model]
                busy = offer.load if isinstance(action, Load) else offer.seconds(action.batch)
                busy += self.late[name]
                self.late[name] = 0.0
                for begun in (action, *step.others):
                    self.later(self.now + busy, lambda a=begun: self.done(name, version, a.id))
            else:
                self.later(self.now, lambda o=step: self.report(version, name, o))
        wakeup = self.workers[name].next_wakeup()
        if wakeup is not None:
            self.later(wakeup, lambda: self.advance(name, version))

    def advance(self, name, version):
        if version == self.versions[name]:
            self.follow(name, self.workers[name].advance(self.now))

    def done(self, name, version, action):
        if version == self.versions[name]:
            self.follow(name, self.workers[name].end(action, ActionStatus.OK, self.now))

    def report(self, version, name, outcome):
        if version != self.versions[name] or outcome.id == 0:
            assert version != self.versions[name] or outcome.status is ActionStatus.OK
            return
        # Both sides agree, so nothing is ever asked that is not possible.
        assert outcome.status in (ActionStatus.OK, ActionStatus.MISSED)
        is_ok = outcome.status is ActionStatus.OK
        requests = self.running.pop(outcome.id, None)
        if requests is None:
            took, is_missed = outcome.duration if is_ok else None, not is_ok
            self.feed(LoadEnded(outcome.id, is_ok, took, is_missed))
        elif is_ok:
            for request in self.answered(outcome.id, requests):
                if not self.ended[request]:
                    self.ended[request] += 1
                    self.check_answer(request)
            self.feed(ExecutionEnded(outcome.id, Result.OK, outcome.duration))
        else:
            self.feed(ExecutionMissed(outcome.id))

    def kept_on(self, name):
        """Return the number of executions of which a device keeps a segment's results."""
        return 0

    def answered(self, execution, requests):
        """Return the requests that an execution answers."""
        return requests

    @rule(dt=st.sampled_from([0.0, 0.001, 0.007, 0.02, 0.05, 0.3, 2.0]))
    def time_passes(self, dt):
        end = self.now + dt
        for _ in range(100_000):
            due = self.agenda[0][0] if self.agenda else float("inf")
            wakeup = self.core.next_wakeup()
            wakeup = float("inf") if wakeup is None else max(wakeup, self.now)
            if min(due, wakeup) > end:
                break
            self.now = min(due, wakeup)
            if due <= wakeup:
                heapq.heappop(self.agenda)[2]()
            else:
                self.feed(Woken())
        else:
            raise AssertionError("it never rests")
        self.now = end

    @rule(data=st.data())
    def cancel(self, data):
        live = [n for n in self.requests if not self.ended[n]]
        if live:
            request = data.draw(st.sampled_from(live))
            self.ended[request] += 1
            self.feed(RequestCancelled(request))

    @rule(name=st.sampled_from(DEVICES), delay=st.sampled_from([0.004, 0.05, 0.4]))
    def be_late(self, name, delay):
        self.late[name] += delay
        self.was_late = True

    @rule(name=st.sampled_from(DEVICES))
    def die(self, name):
        if self.core.executors[name].live:
            self.versions[name] += 1
            self.workers[name] = DeviceCore(0, {})
            self.feed(ExecutorLost(name))

    @rule(data=st.data())
    def change_models(self, data):
        """Remove a model once it is drained, or add one that was removed."""
        model = data.draw(st.sampled_from(sorted(self.specs)))
        served = tuple(self.core.queues)
        if model not in served:
            self.feed(ModelAdded(self.specs[model]))
            self.assign(*served, model)
        elif self.is_drained(model):
            self.assign(*(name for name in served if name != model))
            self.feed(ModelRemoved(model))

    def assign(self, *models):
        for name in DEVICES:
            self.feed(ModelsAssigned(name, models))

    def is_drained(self, model):
        """Return True if no request of a model waits, and none that was cancelled runs."""
        is_live = any(not self.ended[n] for n, r in self.requests.items() if r.model == model)
        return not is_live and all(running.model != model for running in self.core.running())

    @rule(name=st.sampled_from(DEVICES))
    def come_back(self, name):
        if not self.core.executors[name].live:
            self.versions[name] += 1
            self.appear(name)

    @invariant()
    def each_ends_once(self):
        assert max(self.ended.values(), default=0) <= 1

    @invariant()
    def both_sides_agree(self):
        if any(time <= self.now for time, _, _ in self.agenda):
            return  # something is still on its way
        for name in DEVICES:
            device, worker = self.core.executors[name].planned, self.workers[name]
            if device is None:
                continue
            # The worker takes a model's pages when its LOAD begins, the dispatcher when it is given.
            assert 0 <= device.free <= worker.free
            assert device.free == worker.free or len(device.loads)
            assert {m for m in self.offers if device.has(m)} == worker.loaded
            uses = {m: held.uses for m, held in device.held.items()}
            assert sum(uses.values()) == len(device.infers) + self.kept_on(name)

    def teardown(self):
        if hasattr(self, "core"):
            self.time_passes(30.0)
            assert self.core.live == 0
            assert all(self.ended[n] == 1 for n in self.requests)
            for executor in self.core.executors:
                device = executor.planned
                assert device is None or len(device.infers) == len(device.loads) == 0


class PlannedMachine(Devices):
    """`clockwork`: four models, memory for two or three of them."""

    @initialize(
        policy=st.sampled_from([Clockwork, ClockworkPaper]),
        pages=st.lists(st.sampled_from([2, 3, 4, 7]), min_size=3, max_size=3),
        ahead=st.sampled_from([0.0005, 0.005, 0.03]),
    )
    def build(self, policy, pages, ahead):
        specs = [ModelSpec(m, Sla(1.0), deadline=1.0, max_waiting=60) for m in MODELS]
        self.begin(specs, pages, gpu=policy, options=SchedulingConfig(ahead=ahead))

    def check(self, command):
        super().check(command)
        _, last = command.window
        assert command.size == len(command.requests) in MODELS[command.model].executions
        for request in command.requests:
            run = MODELS[command.model].executions[len(command.requests)]
            assert last + run <= self.requests[request].deadline + 2 * TICK

    def check_answer(self, request):
        assert self.was_late or self.now <= self.requests[request].deadline + 2 * TICK

    @invariant()
    def what_is_kept_is_what_a_search_finds(self):
        if not hasattr(self, "core"):
            return
        policy = self.core.policies.active[0]
        assert not policy._stale
        devices = [gpu.device for gpu in policy._gpus.values()]
        for model, model_demand in policy._demands.items():
            if devices and not model_demand.replicas:
                quickest = min(device.cold(model) for device in devices)
                assert policy._loading.fastest_cold_start(model).cold(model) == quickest
            for replica in model_demand.replicas:
                waiting = len(model_demand.due)
                assert model_demand.due or replica.share == 0.0
                missing = [n for n in replica.sizes if n <= waiting and n not in replica.entered]
                assert not (replica.is_loaded and missing) or replica.next_size <= waiting

    @rule(
        model=st.sampled_from(sorted(MODELS)),
        slo=st.sampled_from([0.005, 0.02, 0.045, 0.1, 0.5, 2.0]),
        count=st.sampled_from([1, 2, 3, 5, 9, 20]),
        strict=st.booleans(),
        priority=st.sampled_from(Priority),
    )
    def arrive(self, model, slo, count, strict, priority):
        for _ in range(count):
            self.ask(model, slo, strict=strict, priority=priority)


PlannedMachine.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=40, deadline=None
)
TestPlanned = PlannedMachine.TestCase

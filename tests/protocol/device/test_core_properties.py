"""The rules of a planned device, whatever a dispatcher sends and however late the device is."""

import math
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roma.device.core import Begin, DeviceCore
from roma.domain.actions import ActionOutcome, ActionStatus, Infer, Load, Unload
from tests.support.examples import examples

NEEDS = {"a": 1, "b": 2, "c": 3}
PAGES = 4

models = st.sampled_from([*NEEDS, "unknown"])
delays = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0])
windows = st.sampled_from([0.0, 0.5, 2.0, math.inf])


class Device(RuleBasedStateMachine):
    """A core, a clock, and a list of what it was told and what it said."""

    def __init__(self):
        super().__init__()
        self.core = DeviceCore(PAGES, NEEDS)
        self.now = 0.0
        self.actions = {}
        self.ended = Counter()
        self.running = {}
        self.loaded = set()
        self.dropped = set()

    def take(self, steps):
        for step in steps:
            if isinstance(step, Begin):
                self.begin(step.action)
            else:
                self.end(step)

    def begin(self, action):
        assert action is self.actions[action.id]
        assert action.earliest <= self.now <= action.latest
        assert not any(type(other) is type(action) for other in self.running.values())
        assert action.id not in self.ended
        assert action.id not in self.dropped
        if isinstance(action, Infer):
            assert action.model in self.loaded
        else:
            assert action.model not in self.loaded
        self.running[action.id] = action

    def end(self, outcome):
        self.ended[outcome.id] += 1
        action = self.actions[outcome.id]
        assert outcome.began <= outcome.ended == self.now
        if outcome.status is ActionStatus.MISSED:
            assert self.now > action.latest
        if self.running.pop(outcome.id, None) is None and not isinstance(action, Unload):
            assert outcome.status is not ActionStatus.OK
        if outcome.status is not ActionStatus.OK:
            return
        if isinstance(action, Load):
            self.loaded.add(action.model)
        if isinstance(action, Unload):
            self.loaded.remove(action.model)

    def new(self, kind, *args):
        action = kind(len(self.actions), *args)
        self.actions[action.id] = action
        self.take(self.core.submit(action, self.now))

    @rule(kind=st.sampled_from([Infer, Load]), model=models, delay=delays, window=windows)
    def submit(self, kind, model, delay, window):
        earliest = self.now + delay
        batch = (1,) if kind is Infer else ()
        self.new(kind, model, *batch, earliest, earliest + window)

    @rule(model=models)
    def unload(self, model):
        is_used = any(
            isinstance(action, Infer) and action.model == model
            for number, action in self.actions.items()
            if number not in self.ended and number not in self.dropped
        )
        was_loaded = model in self.loaded
        self.new(Unload, model)
        assert (model in self.loaded) == (was_loaded and is_used)

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 5.0]), is_woken=st.booleans())
    def wait(self, seconds, is_woken):
        wakeup = self.core.next_wakeup()
        self.now += seconds
        if is_woken and wakeup is not None:
            self.now = max(self.now, wakeup)
        self.take(self.core.advance(self.now))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        status=st.sampled_from(
            [ActionStatus.OK, ActionStatus.OK, ActionStatus.ERROR, ActionStatus.INVALID]
        ),
        seconds=st.sampled_from([0.0, 0.5, 4.0]),
    )
    def finish(self, data, status, seconds):
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.now += seconds
        first, *rest = self.core.end(number, status, self.now)
        assert isinstance(first, ActionOutcome)
        assert (first.id, first.status) == (number, status)
        self.take([first, *rest])

    @rule()
    def drop(self):
        waiting = self.actions.keys() - self.ended.keys() - self.running.keys() - self.dropped
        assert set(self.core.drop()) == waiting
        self.dropped |= waiting
        assert self.core.next_wakeup() is None

    @invariant()
    def pages_add_up(self):
        held = self.loaded | {a.model for a in self.running.values() if isinstance(a, Load)}
        assert self.core.free == PAGES - sum(NEEDS[model] for model in held)
        assert self.core.free >= 0

    @invariant()
    def what_is_loaded_is_known(self):
        assert self.core.loaded == self.loaded

    @invariant()
    def each_ends_once_at_most(self):
        assert all(count == 1 for count in self.ended.values())
        assert not self.ended.keys() & self.dropped

    @invariant()
    def nothing_waits_that_could_begin(self):
        wakeup = self.core.next_wakeup()
        assert wakeup is None or wakeup > self.now

    def teardown(self):
        """Everything that is not dropped ends, as soon as there is time."""
        for _ in range(len(self.actions) + 1):
            for number in list(self.running):
                self.take(self.core.end(number, ActionStatus.OK, self.now))
            if (wakeup := self.core.next_wakeup()) is not None:
                self.now = max(self.now, wakeup)
            self.take(self.core.advance(self.now))
        assert self.actions.keys() == self.ended.keys() | self.dropped
        assert not self.running


TestDevice = Device.TestCase
TestDevice.settings = settings(max_examples=examples(200))

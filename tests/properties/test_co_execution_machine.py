"""Segments of two batches at once on three devices, under any sequence of events.

Whatever comes: a segment begins where the one before it ended, on the same device, which is told
once to forget what nothing continues; every request ends exactly once, and nothing is kept for
nobody.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from roma.domain.actions import Discard
from roma.domain.model import ModelSpec, Sla
from tests.properties.test_planned_machine import DEVICES, MODELS, Devices
from tests.support.co_execution import Segments
from tests.support.examples import examples

OFFERS = {name: replace(MODELS[name], segments=i + 1) for i, name in enumerate(MODELS)}


class CoExecutionMachine(Devices):
    """Four models of one to four segments each."""

    offers = OFFERS
    together = 2

    @initialize(pages=st.lists(st.sampled_from([1, 3, 7]), min_size=3, max_size=3))
    def build(self, pages):
        specs = [ModelSpec(m, Sla(1.0), deadline=1.0, max_waiting=60) for m in MODELS]
        self.kept = {name: {} for name in DEVICES}
        """Executions whose results a device has, and where they ended."""
        self.segments = {}
        """Executor, segment and the continued execution, by execution."""
        self.begin(specs, pages, gpu=Segments)

    def appear(self, name):
        self.kept[name] = {}
        super().appear(name)

    def check(self, command):
        self.segments[command.execution] = command.executor, command.part
        if command.part.continues:
            assert self.kept[command.executor][command.part.continues] == command.part.segment.begin
            assert not all(self.ended[request] for request in command.requests)
        else:
            super().check(command)
            assert command.part.segment.begin == 0

    def give(self, name, action):
        if isinstance(action, Discard):
            del self.kept[name][action.infer]
        super().give(name, action)

    def take(self, name, version, action):
        super().take(name, version, action)
        assert len(self.group[name]) < self.together, "the last one begins them all"

    def kept_on(self, name):
        return sum(kept.execution.executor == name for kept in self.core.partial.values())

    def answered(self, execution, requests):
        executor, part = self.segments.pop(execution)
        self.kept[executor].pop(part.continues, None)
        if part.is_last:
            return requests
        self.kept[executor][execution] = part.segment.end
        return ()

    @invariant()
    def a_device_keeps_what_the_core_thinks_it_does(self):
        if hasattr(self, "core"):
            kept = {e for name in DEVICES for e in self.kept[name]}
            live = {n for n, p in self.core.partial.items()}
            assert live <= kept

    @rule(model=st.sampled_from(sorted(MODELS)), count=st.sampled_from([1, 2, 3, 5]))
    def arrive(self, model, count):
        for _ in range(count):
            self.ask(model, 1.0)

    def teardown(self):
        super().teardown()
        if hasattr(self, "core"):
            assert not self.core.partial
            live = [name for name in DEVICES if self.core.executors[name].live]
            assert not any(self.kept[name] for name in live)


CoExecutionMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestCoExecution = CoExecutionMachine.TestCase

"""Property: whatever is measured or lost, allocations fit and minima are kept."""

import math
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controllers import registry
from roma.domain.exchange import (
    ExchangeReply,
    ExecutorReport,
)
from supervisor.executables import Managed
from tests.support.examples import examples
from tests.support.supervisor import M, build, reading, report

WILD = st.one_of(
    st.just(0.0), st.just(math.inf), st.just(math.nan), st.just(-1.0), st.floats(0, 1e9)
)


class SupervisorMachine(RuleBasedStateMachine):
    """Any measurement, any loss: Σ allocations ≤ AC, minima kept, every number finite."""

    @initialize(
        law=st.sampled_from(sorted(registry.LAWS)),
        gamma=st.sampled_from([0.0, 0.5, 1.0]),
        capacity=st.sampled_from([0.5, 2.0, 8.0]),
    )
    def build(self, law, gamma, capacity):
        self.names = ["a@w", "b@w", "c@w"]
        managed = [
            Managed(n, replace(M, name=n[0]), 0.1, min(capacity, 4.0), initial=0.1)
            for n in self.names
        ]
        self.core = build(law, {}, capacity=capacity, managed=managed, gamma=gamma)
        self.now, self.count = 0.0, 0

    @rule(
        dt=st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]),
        age=WILD,
        response=st.one_of(st.none(), WILD),
        usage=WILD,
        cores=st.one_of(st.none(), st.sampled_from([0.05, 1.0, 100.0])),
        waiting=st.integers(0, 10**6),
        arrivals=st.integers(0, 10**6),
        failed=st.integers(0, 100),
        state=st.sampled_from(["loading", "idle", "busy", "lost"]),
        silent=st.booleans(),
        unreadable=st.booleans(),
        confirm=st.booleans(),
    )
    def tick(
        self,
        dt,
        age,
        response,
        usage,
        cores,
        waiting,
        arrivals,
        failed,
        state,
        silent,
        unreadable,
        confirm,
    ):
        self.now += dt
        self.count += arrivals
        models = [
            report(
                n[0],
                arrivals=self.count,
                failed=failed,
                waiting=waiting,
                oldest_age=age,
                response_time=response,
            )
            for n in self.names
        ]
        executors = tuple(ExecutorReport(n, state, 1, self.count) for n in self.names)
        answer = None if silent else ExchangeReply("e", tuple(models), executors)
        readings = {n: None if unreadable else reading(cores, usage) for n in self.names}
        for command in self.core.tick({"d": answer}, readings, now=self.now):
            assert math.isfinite(command.cores)
            if confirm:
                self.core.on_applied(command.executable, command.cores)
            else:
                self.core.on_failed(command.executable)

    @invariant()
    def allocations_fit(self):
        allocations = [s.allocation for s in self.core.status.values() if s.allocation is not None]
        assert sum(allocations) <= self.core.capacity + 1e-9
        assert all(a >= 0.1 - 1e-9 for a in allocations)


SupervisorMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
TestSupervisorMachine = SupervisorMachine.TestCase

"""The policies of variants under any sequence of events, in virtual time.

Whatever comes: no request is in two batches or served by a variant that its client refused, batches
go by deadline up to the width of a bin, answers are worth from 0 to κ, and every request ends once.
"""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from dispatcher.schedulers.qos.heuristic import Fixed, Qos
from dispatcher.schedulers.qos.optimal import QosOpt
from dispatcher.state.utility import UTILITIES, soft_deadline
from roma.config.scheduling import QualityConfig, SchedulingConfig
from roma.domain.actions import ModelCapabilities
from roma.domain.model import ModelSpec, Priority, Sla
from roma.domain.variants import RequestOptions, Variant
from tests.properties.test_planned_machine import Devices
from tests.support.clockwork import RUNS
from tests.support.examples import examples

VARIANTS = (Variant("a-large", 1.0), Variant("a-small", 0.7))


OFFERS = {
    "a-large": ModelCapabilities(1, 0.010, {n: 3 * t for n, t in RUNS.items()}, any_batch=True),
    "a-small": ModelCapabilities(1, 0.010, RUNS),
    "b": ModelCapabilities(1, 0.005, {1: 0.005, 2: 0.006}),
}


class QualityMachine(Devices):
    """A model with two variants and one without, on two devices."""

    offers = OFFERS

    @initialize(
        policy=st.sampled_from([Fixed, Qos, QosOpt]),
        pages=st.lists(st.sampled_from([1, 2, 3]), min_size=3, max_size=3),
        width=st.sampled_from([0.01, 0.2]),
        utility=st.sampled_from(sorted(UTILITIES)),
    )
    def build(self, policy, pages, width, utility):
        self.width = width
        specs = [
            ModelSpec("a", Sla(0.2), deadline=0.4, max_waiting=60, variants=VARIANTS),
            ModelSpec("b", Sla(0.2), deadline=0.4, max_waiting=60),
        ]
        quality = QualityConfig(bin=width, utility=utility)
        self.begin(specs, pages, gpu=policy, options=SchedulingConfig(quality=quality))

    def check(self, command):
        super().check(command)
        served = {v.name: v for v in VARIANTS}.get(command.variant)
        spec = self.core.queues[command.model].spec
        requests = [self.requests[r] for r in command.requests]
        assert len(requests) <= command.size
        if served is not None:
            assert all(r.terms is None or r.terms.allows(served) for r in requests)
        state = self.core.policies.active[0].state
        last = max(soft_deadline(r, spec) for r in requests) // self.width
        for request in self.requests.values():
            is_alike = (request.model, request.terms) in {(r.model, r.terms) for r in requests}
            if is_alike and not self.ended[request.id] and state.waits(spec.name, request.id):
                assert soft_deadline(request, spec) // self.width >= last

    @rule(
        slo=st.sampled_from([0.02, 0.1, 0.2, 0.4]),
        count=st.sampled_from([1, 2, 5, 20]),
        soft=st.sampled_from([None, -0.01, 0.05]),
        variant=st.sampled_from([None, None, "a-large", "a-small"]),
        accuracy=st.sampled_from([0.0, 0.9]),
        priority=st.sampled_from(Priority),
    )
    def arrive(self, slo, count, soft, variant, accuracy, priority):
        terms = RequestOptions(None if soft is None else self.now + soft, variant, accuracy)
        chosen = [v for v in VARIANTS if terms.allows(v)]
        for _ in range(count if chosen else 0):
            self.ask("a", slo, terms=terms, priority=priority)

    @rule(count=st.sampled_from([1, 3, 9]))
    def arrive_without_terms(self, count):
        for model in itertools.islice(itertools.cycle("ab"), count):
            self.ask(model, 0.4)

    @invariant()
    def answers_are_worth_what_their_variant_is(self):
        for queue in self.core.queues.values():
            most = sum(n * queue.accuracy[name] for name, n in queue.answers.items())
            assert -1e-9 <= queue.quality <= most + 1e-9
            assert queue.accuracy or not queue.answers


QualityMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestQuality = QualityMachine.TestCase

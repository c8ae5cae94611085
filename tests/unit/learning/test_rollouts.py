"""The environment, under a policy that does anything."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.schedulers.qos.learned import QosRl
from roma.config.scheduling import QualityConfig
from roma.domain.errors import ConfigError
from roma.domain.variants import RequestOptions
from roma.lab.learning.rollouts import Explorer, Task, roll, score
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet import Fleet
from roma.lab.sim.fleet_plan import Arrival, FleetPlan
from tests.support.policy import FAST, GOOD, offers, policy

KINDS = ("slow", "quick", "quick")


def arrivals(seed, rate=60, seconds=20):
    times = np.sort(np.random.default_rng(seed).uniform(1, 1 + seconds, rate * seconds))
    return [Arrival(t, t + 1.0, RequestOptions(soft=t + 0.5)) for t in times.tolist()]


def task(kinds=KINDS, arrivals=arrivals):
    plan = FleetPlan(
        models=offers(kinds[0]),
        devices=len(kinds),
        pages=2,
        deadline=1.0,
        soft=0.5,
        policy=QosRl,
        latency=0.0,
        noise=Noise(0.03, 0.0, 0.0, is_normal=True),
        kinds=[offers(kind) for kind in kinds],
        variants={"m": (GOOD, FAST)},
        quality=QualityConfig(),
    )
    return Task(plan, "m", arrivals)


ANYTHING = policy(output={"weights": [[0.0] * 7] * 2, "bias": [0.0] * 7})
"""All actions are equally likely."""


@pytest.mark.parametrize("teach", [False, True])
def test_every_query_is_charged_to_an_action_once(teach):
    found = roll(task(), ANYTHING, 3, teach=teach)
    asked = len(arrivals(3))
    assert 0 < found.quality < 1
    assert found.costs.sum() == pytest.approx(asked * (1 - found.quality))
    assert (found.costs >= 0).all()
    assert (np.diff(found.times) >= 0).all()
    count = len(found.actions)
    assert found.states.shape == (count, ANYTHING.inputs)
    assert len(found.times) == len(found.costs) == count
    assert set(found.actions) <= set(range(7))
    if not teach:
        assert set(found.actions) == set(range(7))


def test_devices_that_run_batches_of_any_size_teach_too():
    fixed = task()
    kinds = [{m: replace(o, any_batch=True) for m, o in kind.items()} for kind in fixed.plan.kinds]
    found = roll(replace(fixed, plan=replace(fixed.plan, kinds=kinds)), ANYTHING, 3, teach=True)
    assert set(found.actions) <= set(range(7))


def test_every_query_ends_once_and_is_worth_its_variants_accuracy_at_most(monkeypatch):
    ends = []
    finish = Fleet._finish

    def spy(self, number, reason, variant=None):
        ends.append((number, reason, variant))
        finish(self, number, reason, variant)

    monkeypatch.setattr(Fleet, "_finish", spy)
    found = roll(task(), ANYTHING, 3)
    numbers = [number for number, _, _ in ends]
    assert sorted(numbers) == list(range(1, len(arrivals(3)) + 1))
    assert all((reason is None) == (variant is not None) for _, reason, variant in ends)
    most = sum({"good": 1.0, "fast": 0.5, None: 0.0}[variant] for _, _, variant in ends)
    assert found.quality * len(ends) <= most


def test_actions_are_taken_where_a_device_is_free_and_something_waits(monkeypatch):
    seen = []
    decide = Explorer.decide

    def spy(self, variant_queue, gpu, able, now):
        seen.append((gpu.is_free, variant_queue.waiting > 0))
        return decide(self, variant_queue, gpu, able, now)

    monkeypatch.setattr(Explorer, "decide", spy)
    roll(task(), ANYTHING, 3)
    assert len(seen) > 100
    assert set(seen) == {(True, True)}


def test_the_same_seed_is_the_same_stretch():
    one, two, other = (roll(task(), ANYTHING, seed) for seed in (3, 3, 4))
    for name in ("states", "actions", "times", "costs"):
        assert (getattr(one, name) == getattr(two, name)).all()
    assert len(one.actions) != len(other.actions) or (one.actions != other.actions).any()


def test_a_cost_is_what_an_answer_lacks_and_unanswered_ones_cost_all():
    # One device that takes 0.15 s for both by `fast`, which is worth a half; two more while it
    # runs, which run as long; their soft deadlines are at 0.1 and 0.2 s.
    def asked(seed):
        return [
            Arrival(1.0, 2.0, RequestOptions(soft=1.4)),
            Arrival(1.05, 1.4, RequestOptions(soft=1.2)),
            Arrival(1.06, 1.19, RequestOptions(soft=1.19)),
        ]

    one = task(("slow",), asked)
    exact = replace(one, plan=replace(one.plan, noise=Noise(0, 0, 0)))
    always = policy(5)  # a batch of 2 by `fast`
    found = roll(exact, policy(output={"weights": [[0.0] * 7] * 2, "bias": [0.0] * 5 + [99, 0]}), 1)
    # Alone in 1.0 to 1.1: 0.5. Then both; one in time until 1.25 has (1.4 - 1.25)/0.2 of its half,
    # the other one's end was 1.19.
    assert found.costs == pytest.approx([0.5, (1 - 0.5 * 0.75) + 1.0])
    assert score(exact, always, 1) == pytest.approx((0.5 + 0.375) / 3)


def test_devices_that_a_policy_does_not_know_are_refused():
    with pytest.raises(ConfigError, match=r"device gpu1: devices of type slow = 2: must be ≤ 1"):
        roll(task(("slow", "slow")), ANYTHING, 1)

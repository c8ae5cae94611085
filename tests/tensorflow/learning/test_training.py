"""Learning: by hand where that is possible, against an optimum that is known, and again."""

from dataclasses import replace

import numpy as np
import pytest

from dispatcher.schedulers.qos.learned import QosRl
from roma.config.policy_file import PolicyTraining, load, save
from roma.config.scheduling import QualityConfig
from roma.domain.actions import ModelCapabilities
from roma.domain.variants import RequestOptions, Variant
from roma.lab.learning import training
from roma.lab.learning.gradient import LAMBDA, TAU, advantages
from roma.lab.learning.rollouts import Rollout, Task, score
from roma.lab.sim.devices import Noise
from roma.lab.sim.fleet_plan import Arrival, FleetPlan

TOLD = PolicyTraining(command="a test", seed=1, hours="0-1", rounds=0, score=0, teacher=0)


def pairs(seed):
    """Two queries at once, every second: full value for 0.6 s, none after 0.7 s."""
    times = np.repeat(np.arange(1.0, 31.0), 2) + 1e-3 * np.random.default_rng(seed).random(60)
    return [Arrival(t, t + 0.7, RequestOptions(soft=t + 0.6)) for t in np.sort(times).tolist()]


def task():
    # `good` takes all the time that one answer has, `fast` next to none and is worth half. Both by
    # `fast` come to 1, one by `good` and the other too late to 1, one by each to 1.5: the optimum.
    device = {
        "good": ModelCapabilities(1, 1e-3, {1: 0.45, 2: 0.9}),
        "fast": ModelCapabilities(1, 1e-3, {1: 0.05, 2: 0.08}),
    }
    plan = FleetPlan(
        models=device,
        devices=1,
        pages=2,
        deadline=0.7,
        soft=0.6,
        policy=QosRl,
        latency=0.0,
        noise=Noise(0.0, 0.0, 0.0, is_normal=True),
        kinds=[device],
        variants={"m": (Variant("good", 1.0), Variant("fast", 0.5))},
        quality=QualityConfig(),
    )
    return Task(plan, "m", pairs)


def learned(rounds, seed=1, **changes):
    course = training.Course(
        rounds, stretches=4, every=rounds, exams=1, imitations=2, epochs=5, processes=1, **changes
    )
    told = TOLD.model_copy(update={"seed": seed})
    return training.train(task(), training.empty(task(), [("a", 1)]), course, told)


def test_an_optimum_that_is_known_is_found():
    found = learned(60)
    assert found.training.teacher < 0.6
    assert score(task(), found, 77) == pytest.approx(0.75, abs=0.02)


def test_the_same_seed_is_the_same_file(tmp_path):
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        save(learned(2, seed), tmp_path / name)
    one, two, other = [(tmp_path / name).read_bytes() for name in "abc"]
    assert one == two != other
    found = load(tmp_path / "a")
    assert found.training.rounds == 2
    # What it says of itself is what its rounded numbers score.
    seed = 10_000_000 + training.UNSEEN
    assert found.training.score == pytest.approx(score(task(), found, seed), abs=1e-4)


def test_a_policy_that_knows_nothing_has_the_actions_of_all_its_devices():
    plan = task().plan
    less = {**plan.kinds[0], "good": ModelCapabilities(1, 1e-3, {1: 0.9})}
    both = replace(task(), plan=replace(plan, kinds=[less, *plan.kinds * 2], devices=3))
    found = training.empty(both, [("b", 1), ("a", 2)])
    assert [(a.batch, a.variant) for a in found.actions] == [
        (0, None),
        *[(b, v) for v in ("good", "fast") for b in (1, 2)],
    ]
    assert found.inputs == 10 + 2 + 2 + 3


def test_advantages_by_hand():
    times, costs = np.array([0.0, 1.0, 3.0]), np.array([2.0, 0.0, 9.0])
    rollout = Rollout(np.zeros((3, 1)), np.zeros(3, int), times, costs, 0.5)
    values = np.array([1.0, 2.0, 3.0])
    gain, target = advantages(rollout, values, 1.0)
    first, second = np.exp(-1 / TAU), np.exp(-2 / TAU)
    late = second * 3 - 2
    early = 2 + first * 2 - 1 + first * LAMBDA * late
    assert gain == pytest.approx([-early, -late, 0])
    assert target == pytest.approx([1 + early, 2 + late, 3])

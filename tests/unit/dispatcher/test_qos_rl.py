"""What the learned policy sees, what becomes of its actions, and whom it refuses."""

import pytest

from dispatcher.core import Dispatcher
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from dispatcher.schedulers.qos.learned import AWAY, QosRl
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import Capabilities
from roma.domain.events import (
    Execute,
    ExecutionEnded,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    RequestArrived,
    Result,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla, Statistic
from roma.domain.variants import RequestOptions
from tests.support.policy import FAST, GOOD, WAIT, number, offers, policy

SPEC = ModelSpec("m", Sla(1.0, Statistic.EACH), 2.0, variants=(GOOD, FAST))


class Scene:
    def __init__(self, policy, kind=QosRl):
        options = SchedulingConfig(latency=0.0)
        self.core = Dispatcher([SPEC], gpu=kind, cpu=CpuRoundRobin, options=options, learned=policy)
        self.last = 0

    def device(self, name, kind, loaded=("good", "fast"), now=0.0):
        spec = ExecutorSpec(name, Device.GPU, ("m",), is_planned=True)
        if name not in self.core.executors:
            self.core.handle(ExecutorAdded(spec), now=now)
        pages = len(loaded)
        return self.core.handle(
            ExecutorReady(name, Capabilities(pages, offers(kind), loaded)), now=now
        )

    def waited(self, count, now, **terms):
        """Let so many wait for the device, and let it be free then; return what it runs."""
        (first,) = [c for c in self.arrive(now) if isinstance(c, Execute)]
        for _ in range(count):
            assert runs(self.arrive(now, **terms)) == []
        return runs(self.core.handle(ExecutionEnded(first.execution, Result.OK, 0.1), now=now))

    def arrive(self, now, *, soft=1.0, **terms):
        self.last += 1
        wanted = RequestOptions(soft=now + soft, **terms)
        request = Request(self.last, "m", now, now + 2.0, terms=wanted)
        return self.core.handle(RequestArrived(request), now=now)

    @property
    def policy(self):
        return self.core.policies.active[0]

    def features(self, name, now):
        gpus = self.policy.gpus
        variant_queue = self.policy.variant_queues["m"]
        return self.policy.observer.features(variant_queue, gpus[name], list(gpus.values()), now)


def runs(commands):
    return [(c.executor, c.variant, c.size, c.requests) for c in commands if isinstance(c, Execute)]


def test_features_by_hand():
    scene = Scene(policy(WAIT))
    scene.device("a", "slow")
    scene.device("b", "quick")
    for soft in (0.05, 0.25, 0.28, 1.0, 9.0):
        scene.arrive(10.1, soft=soft)
    # Now is in bin 50, soft deadlines in bins 50, 51, 51, 55; that of the last is its hard one, 12.1.
    found = scene.features("b", 10.1)
    assert found[:10] == [0, 0, 0, 0, 1, 2, 0, 0, 0, 1]
    assert found[10:12] == [5, 5.0]  # 5 within less than a second count as 5 a second
    assert found[12:14] == [0, 1]
    assert found[14:] == [0, 0, AWAY]  # "a" and "b" are free, one quick device is away
    assert scene.features("a", 10.3)[:10] == [0, 0, 0, 1, 2, 0, 0, 0, 1, 0]
    assert scene.features("a", 10.1)[12:14] == [1, 0]


def test_rests_are_what_devices_still_have_to_compute():
    scene = Scene(policy(number(4, "good")))
    scene.device("a", "slow")
    scene.device("b", "quick")
    scene.device("c", "quick")
    assert runs(scene.arrive(1.0)) == [("b", "good", 1, (1,))]  # the fastest that is free
    assert runs(scene.arrive(1.06)) == [("c", "good", 1, (2,))]
    assert scene.features("a", 1.08)[14:] == pytest.approx([0.0, 0.02, 0.08])
    scene.core.handle(ExecutorLost("c"), now=1.08)
    assert scene.features("a", 1.08)[14:] == pytest.approx([0.0, 0.02, AWAY])


@pytest.mark.parametrize(
    ("action", "kind", "loaded", "terms", "ran"),
    [
        ((4, "good"), "quick", ("good", "fast"), {}, ("good", 4)),
        ((4, "good"), "slow", ("good", "fast"), {}, ("good", 2)),  # it has no batch of 4
        ((2, "good"), "quick", ("fast",), {}, ("fast", 2)),  # no memory for the other one
        ((2, "fast"), "quick", ("good",), {}, ("good", 2)),
        ((2, "fast"), "quick", ("good", "fast"), {"accuracy": 0.9}, ("good", 2)),
        ((2, "good"), "quick", ("good", "fast"), {"variant": "fast"}, ("fast", 2)),
    ],
)
def test_what_is_not_feasible_falls_to_the_nearest_smaller_action(action, kind, loaded, terms, ran):
    scene = Scene(policy(number(*action)))
    scene.device("a", kind, loaded)
    ((_, variant, size, requests),) = scene.waited(4, 1.0, **terms)
    assert (variant, size) == ran
    assert requests == tuple(range(2, size + 2))


def test_what_waits_runs_in_the_size_that_takes_it():
    scene = Scene(policy(number(4, "good")))
    scene.device("a", "quick")
    assert scene.waited(3, 1.0) == [("a", "good", 4, (2, 3, 4))]


def test_a_busy_device_is_asked_nothing_and_then_again():
    scene = Scene(policy(number(1, "fast")))
    scene.device("a", "quick")
    (first,) = scene.arrive(1.0)
    assert scene.arrive(1.01) == []
    ended = ExecutionEnded(first.execution, Result.OK, 0.05)
    assert runs(scene.core.handle(ended, now=1.05)) == [("a", "fast", 1, (2,))]


def test_batch_size_0_waits_and_what_comes_meanwhile_does_not_ask_again():
    asked = []

    class Watched(QosRl):
        def pick(self, features, now):
            asked.append(now)
            return super().pick(features, now)

    scene = Scene(policy(WAIT), Watched)
    scene.device("a", "quick")
    assert scene.arrive(1.0) == scene.arrive(1.02) == []
    assert asked == [1.0]
    assert scene.core.next_wakeup() == pytest.approx(1.05)
    assert scene.core.handle(Woken(), now=1.05) == []
    assert asked == [1.0, 1.05]


def test_other_devices_are_refused_and_one_too_many():
    core = Scene(policy()).core
    slower = Capabilities(2, offers("slow", good=1.25))
    assert core.refusal("a", slower) == (
        "not a device that the policy was trained for; "
        "slow: models.good: batch 1 = 0.25 s: must be 0.16 to 0.24; "
        "quick: models.good: batch sizes = 1, 2: must be 1, 2, 4"
    )
    lacking = Capabilities(2, {"good": offers("slow")["good"]})
    assert "slow: models = good: must have fast" in core.refusal("a", lacking)
    assert core.refusal("a", Capabilities(2, offers("slow", good=1.15))) is None
    scene = Scene(policy())
    scene.device("a", "slow")
    assert scene.core.refusal("a", Capabilities(2, offers("slow"))) is None  # itself, again
    assert scene.core.refusal("b", Capabilities(2, offers("slow"))) == (
        "devices of type slow = 2: must be ≤ 1 (the policy's)"
    )
    scene.core.handle(ExecutorLost("a"), now=1.0)
    assert scene.core.refusal("b", Capabilities(2, offers("slow"))) is None

"""What a policy that takes part later is told of the requests that wait already."""

from dispatcher.schedulers.base import Scheduler
from roma.domain.events import ModelAdded
from roma.domain.model import Device, Priority
from tests.unit.dispatcher.conftest import model


class Listener(Scheduler):
    request_aware = True

    def __init__(self, state, options):
        super().__init__(state, options)
        self.heard = []

    def on_queue(self, queue, now):
        self.heard.append(queue.spec.name)

    def on_executor(self, executor, now):
        self.heard.append(executor.spec.name)

    def on_request(self, request, now):
        self.heard.append(request.id)

    def choose(self, now):
        return None


def test_a_policy_that_is_made_anew_hears_of_all_that_waits(harness):
    core = harness.build("a", gpu=Listener)
    harness.gpu()
    harness.arrive("a", 0.1)
    harness.arrive("a", 0.1, priority=Priority.LOW)
    before = core.policies.by_device[Device.GPU]
    core.handle(ModelAdded(model("b")), now=0.2)
    (listener,) = core.policies.active
    assert listener is not before
    assert listener.heard == ["a", "b", "gpu", 1, 2]
    harness.arrive("a", 0.3)
    assert listener.heard[5:] == [3, "a"]


def test_a_policy_without_a_device_hears_nothing_until_there_is_one(harness):
    core = harness.build("a", gpu=Listener)
    harness.cpu("slow", "a")
    harness.arrive("a", 0.1)
    harness.arrive("a", 0.2)
    listener = core.policies.by_device[Device.GPU]
    assert listener.heard == []
    harness.gpu(now=0.3)
    assert listener in core.policies.active
    assert listener.heard == ["a", "slow", "gpu", 2, "gpu"]

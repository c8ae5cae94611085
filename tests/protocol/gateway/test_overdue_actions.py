"""Time that a planned device may take to answer, in virtual time."""

import numpy as np
import pytest

from dispatcher.assembly import build_core
from dispatcher.live.driver import Call, Driver
from dispatcher.live.http.messages import Message, request_template
from dispatcher.live.planned.device import PlannedDevice
from dispatcher.live.planned.examples import MultiExampleCall
from dispatcher.live.unavailable import Reasons
from roma.config import placement, schema
from roma.device_protocol import ActionResult, Hello
from roma.domain.actions import (
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Infer,
    Load,
    ModelCapabilities,
)
from roma.domain.events import ExecutorAdded
from roma.tensors.tfjson import Layout
from tests.support.planned import PAIR, TIMES

NAMES = ("large", "medium", "small")

YAML = """
models:
  m:
    sla: {response_time: 1}
    variants: {large: {accuracy: 1}, medium: {accuracy: 0.9}, small: {accuracy: 0.8}}
workers: [{backend: static, cores: 1, executables: [{actions: "x:1", device: gpu}]}]
scheduling: {gpu: fixed}
"""


class Unanswered(Call):
    """A call of a client that waits."""


class DeviceRig:
    """A device that is asked for three LOADs at once, and is told how each ends."""

    def __init__(self):
        self.now = 0.0
        config = schema.parse(YAML)
        core = build_core(config)
        (executable,) = placement.executables(config)
        self.driver = Driver(core, {}, backend_timeout=30.0, clock=lambda: self.now)
        self.device = PlannedDevice(
            executable, self.driver, {}, timeout=30.0, reasons=Reasons(core)
        )
        self.device._client.submit = lambda action, inputs: self.asked.append(action) or True
        self.asked = []
        self.driver.devices[executable.name] = self.device
        self.driver.handle(ExecutorAdded(executable.spec))
        offers = dict.fromkeys(NAMES, ModelCapabilities(1, 20.0, TIMES))
        signatures = {name: {"serving_default": PAIR} for name in NAMES}
        self.device.on_hello(Hello("w", Capabilities(3, offers), signatures))

    def request(self):
        call = Unanswered("m", Message(request_template("/v1/models/m:predict"), b""))
        whole = MultiExampleCall(self.driver, call, Layout.ROW)
        whole.submit({"x": np.zeros((1, 2), np.float32)}, 1)

    def end(self, action):
        outcome = ActionOutcome(action.id, ActionStatus.OK, self.now - 20.0, self.now)
        self.device.on_result(ActionResult(outcome))


@pytest.fixture
async def rig():
    rig = DeviceRig()
    yield rig
    rig.driver.close()


async def test_a_load_is_overdue_from_the_end_of_the_one_before(rig):
    large, medium, _ = rig.asked
    assert all(isinstance(action, Load) for action in rig.asked)
    rig.now = 20.0
    rig.end(large)
    rig.now = 40.0
    assert rig.device.overdue(rig.now) is None
    rig.end(medium)
    assert rig.device.overdue(69.0) is None
    assert rig.device.overdue(71.0) == "LoadModel of small: no result within 30 s"


async def test_loads_that_end_hide_no_batch_that_does_not(rig):
    large, medium, _ = rig.asked
    rig.now = 20.0
    rig.end(large)
    rig.request()
    assert isinstance(rig.asked[-1], Infer)
    rig.now = 40.0
    rig.end(medium)
    assert rig.device.overdue(49.0) is None
    assert rig.device.overdue(51.0) == "Execute of large: no result within 30 s"

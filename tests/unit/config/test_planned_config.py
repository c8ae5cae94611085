"""Planned GPUs in roma.yaml: what they say, and what does not go with them."""

from pathlib import Path

import pytest

from dispatcher.assembly import build_core
from roma.config import placement, schema
from roma.domain.errors import ConfigError
from roma.domain.model import Device
from roma.lab.sim import scenario
from roma.tools.profiling import plan
from tests.support.roma_yaml import faults

YAML = """
models:
  m: {{sla: {{response_time: 1}}, path: x}}
workers:
  - {{name: w, cores: 2, backend: static, executables: [{listed}]}}
{more}
"""
GPU = "{actions: 'x:1', device: gpu}"
CLOCKWORK = "scheduling: {gpu: clockwork}"


def read(listed=GPU, more=CLOCKWORK):
    return schema.parse(YAML.format(listed=listed, more=more))


def test_a_planned_gpu_has_an_address_for_actions_and_no_url():
    (found,) = placement.executables(read("{actions: 'x.y:9', device: gpu, token: secret}"))
    assert (found.spec.is_planned, found.spec.device) == (True, Device.GPU)
    assert found.spec.models == ("m",)
    assert (found.host, found.port, found.token) == ("x.y", 9, Path("secret"))
    assert not found.controlled
    with pytest.raises(AssertionError, match="gpu0@w has no URL"):
        found.url  # noqa: B018


def test_its_token_is_relative_to_the_file(tmp_path):
    file = tmp_path / "roma.yaml"
    listed = "{actions: 'x:1', device: gpu, token: secret}, {actions: 'x:2', device: gpu}"
    file.write_text(YAML.format(listed=listed, more=CLOCKWORK))
    assert [e.token for e in placement.executables(schema.load(file))] == [
        tmp_path / "secret",
        None,
    ]


@pytest.mark.parametrize(
    ("policy", "name"), [("clockwork", "Clockwork"), ("clockwork_paper", "ClockworkPaper")]
)
def test_policies_and_their_options(policy, name):
    more = f"scheduling: {{gpu: {policy}, ahead: 0.01, latency: 0.002}}"
    policies = build_core(read(more=more)).policies
    assert type(policies.by_device[Device.GPU]).__name__ == name
    assert (policies.options.ahead, policies.options.latency) == (0.01, 0.002)
    defaults = build_core(read()).policies.options
    assert (defaults.ahead, defaults.latency) == (0.005, 0.0005)


LISTED = "workers.0.executables.0"


@pytest.mark.parametrize(
    ("listed", "more", "fault"),
    [
        (
            "{actions: 'x:1', url: 'http://x:2', device: gpu}",
            CLOCKWORK,
            f"{LISTED}.actions = x:1: must be absent where url is set (http://x:2)",
        ),
        (
            "{device: gpu}",
            CLOCKWORK,
            f"{LISTED}.url = None: must be set, or actions for a planned GPU",
        ),
        (
            "{actions: 'x:1', model: m}",
            CLOCKWORK,
            f"{LISTED}.device = cpu: must be gpu where actions is set",
        ),
        (
            "{actions: 'x:1', device: gpu, model: m}",
            CLOCKWORK,
            f"{LISTED}.model = m: must be set for device cpu, absent for device gpu",
        ),
        (
            "{actions: 'x:1', device: gpu, grpc: 'x:2'}",
            CLOCKWORK,
            f"{LISTED}.grpc = x:2: must be absent where actions is set",
        ),
        (
            "{actions: 'x:1', device: gpu, cgroup: a}",
            CLOCKWORK,
            f"{LISTED}.cgroup = a: must be absent where actions is set",
        ),
        (
            "{url: 'http://x:1', device: gpu, token: secret}",
            "",
            f"{LISTED}.token = secret: must be absent without actions",
        ),
        (
            "{actions: 'x:0', device: gpu}",
            CLOCKWORK,
            f"{LISTED}.actions = x:0: must be at a port from 1 to 65535",
        ),
        (  # the resolver would raise for it, and end the gateway
            f"{{actions: 'x.{'y' * 64}:1', device: gpu}}",
            CLOCKWORK,
            f"{LISTED}.actions = x.{'y' * 64}:1: string should match pattern "
            r"'^[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*:[0-9]{1,5}$'",
        ),
        (
            f"{GPU}, {GPU}",
            CLOCKWORK,
            "workers.executables.actions = x:1: must be listed once",
        ),
        (
            GPU,
            "",
            f"scheduling.gpu = gpu_savings_first: must be one of clockwork, clockwork_paper, fixed, qos, qos-opt, qos-rl where {LISTED} has "
            "actions",
        ),
        (
            "{url: 'http://x:1', device: gpu}",
            CLOCKWORK,
            f"scheduling.gpu = clockwork: must be another one where {LISTED} has no actions",
        ),
        (
            f"{GPU}, {{url: 'http://x:1', device: gpu}}",
            CLOCKWORK,
            "scheduling.gpu = clockwork: must be another one where workers.0.executables.1 has no "
            "actions",
        ),
        (
            f"{GPU}, {{url: 'http://x:1', model: m}}",
            CLOCKWORK,
            f"workers.0.executables.1.url = http://x:1: must be absent: {LISTED} has actions",
        ),
        (
            GPU,
            "  - {name: v, cores: 2, backend: docker}\n" + CLOCKWORK,
            f"workers.1.backend = docker: must be static where GPUs have actions ({LISTED})",
        ),
        (
            "{url: 'http://x:1', model: m}",
            "  - {name: v, cores: 2, backend: docker, gpus: 1}\n" + CLOCKWORK,
            "scheduling.gpu = clockwork: must be another one where GPUs have no actions "
            "(workers.1.gpus = 1)",
        ),
        (
            GPU,
            CLOCKWORK + "\ngateway: {processes: 2}",
            "gateway.processes = 2: must be 1 with GPUs: each would send to one at once",
        ),
        (
            GPU,
            "scheduling: {gpu: clockwork, ahead: 0}",
            "scheduling.ahead = 0: input should be greater than or equal to 0.0005",
        ),
        (
            GPU,
            "scheduling: {gpu: clockwork, latency: -1}",
            "scheduling.latency = -1: input should be greater than or equal to 0",
        ),
    ],
)
def test_faults_are_one_line(listed, more, fault):
    assert faults(YAML.format(listed=listed, more=more)) == [f"roma.yaml: {fault}"]


def test_what_a_planned_device_cannot_say_is_asked_for():
    plant = CLOCKWORK + "\nplant: {models: {m: {cost: 0.1, load: {profile: 1}}}}"
    with pytest.raises(ConfigError, match=r"plant\.models\.m\.device: missing; a planned GPU"):
        scenario.from_config(read(more=plant))
    with pytest.raises(ConfigError, match=r"models\.m: cannot be profiled"):
        plan.make(read(), machine=2.0)

"""Replicas in a cluster: `scale` of a model's Deployment."""

import pytest
import yaml

from roma.config import schema
from roma.deploy.replicas import scaler
from roma.domain.errors import ConfigError
from roma.domain.replicas import StartReplica, StopReplica
from roma.kubernetes.client import ApiServerError
from tests.support.kubeconfig import kubeconfig_of

FILE = """
models: {{m: {{sla: {{response_time: 1}}}}, other: {{sla: {{response_time: 1}}}}}}
workers:
- name: a
  backend: kubernetes
  node: node-a
  cores: 4
  kubernetes: {{namespace: models, kubeconfig: {kubeconfig}}}
"""


@pytest.fixture
def deployed(cluster, tmp_path):
    """The scaler of a file whose API server is the fake."""
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig_of(cluster.api.url)))
    cluster.api.replicas["roma-model-m"] = 1
    config = schema.parse(FILE.format(kubeconfig=tmp_path / "kubeconfig"))
    return scaler(tmp_path / "roma.yaml", config)


async def test_a_number_of_replicas_is_patched_into_the_deployment(cluster, deployed):
    for count, command in ((3, StartReplica("m")), (2, StopReplica("m"))):
        before = cluster.api.replicas["roma-model-m"]
        commands = await deployed.commands("m", count)
        assert commands == [command] * abs(count - before)
        done = await deployed.carry_out(commands)
        assert done == [f"deployment roma-model-m: replicas {before} -> {count}"]
        assert cluster.api.replicas == {"roma-model-m": count}
    assert await deployed.commands("m", 2) == []


async def test_a_deployment_without_replicas_can_start_one(cluster, deployed):
    cluster.api.replicas["roma-model-m"] = 0
    await deployed.carry_out([StartReplica("m")])
    assert cluster.api.replicas == {"roma-model-m": 1}


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ([StartReplica("m", "a")], r"worker = a: must be absent: the cluster's scheduler places"),
        ([StopReplica("m")], r"models\.m: replicas = 0: must be ≥ 1"),
    ],
)
async def test_commands_that_cannot_be_carried_out_are_refused(
    cluster, deployed, commands, message
):
    with pytest.raises(ConfigError, match=message):
        await deployed.carry_out(commands)
    assert cluster.api.replicas == {"roma-model-m": 1}


async def test_of_commands_for_several_models_none_is_carried_out_if_one_cannot_be(
    cluster, deployed
):
    cluster.api.replicas["roma-model-other"] = 1
    with pytest.raises(ConfigError, match=r"models\.other: replicas = 0"):
        await deployed.carry_out([StartReplica("m"), StopReplica("other")])
    assert cluster.api.replicas == {"roma-model-m": 1, "roma-model-other": 1}


async def test_what_the_api_server_says_is_said(cluster, deployed):
    with pytest.raises(
        ApiServerError, match=r"status 404: deployments\.apps \"roma-model-other\" not"
    ):
        await deployed.commands("other", 2)
    cluster.api.refusals = [(403, "deployments.apps is forbidden")]
    with pytest.raises(ApiServerError, match=r"status 403: deployments\.apps is forbidden"):
        await deployed.carry_out([StartReplica("m")])
    assert cluster.api.replicas == {"roma-model-m": 1}

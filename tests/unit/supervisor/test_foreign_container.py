"""`roma up` where another program has a container of the name that one of ours would get."""

import contextlib

import pytest

from roma.config import schema
from roma.deploy import containers
from roma.domain.errors import LaunchError
from tests.unit.supervisor.test_container_returns import Engine

TEXT = """
name: d
models: {a: {path: /a, sla: {response_time: 1}}, b: {path: /b, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {direct: true, cgroup_root: /nowhere}}]
"""


async def test_it_is_named_with_its_worker_and_left_alone_and_ours_are_removed(
    tmp_path, monkeypatch
):
    foreign = {"d-w-b": {"Labels": {"made": "by hand"}}}
    engine = Engine(**foreign)

    @contextlib.asynccontextmanager
    async def connected(_):
        yield engine

    monkeypatch.setattr(containers, "connected", connected)
    config = schema.parse(TEXT)
    named = r"^workers\.w: container d-w-b: label roma\.managed = None: must be d$"
    with pytest.raises(LaunchError, match=named):
        async with containers.containers(config, config.workers[0], tmp_path / "f", None):
            pass
    assert engine.present == foreign

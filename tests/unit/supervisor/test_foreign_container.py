"""`roma up` where another program has a container of the name that one of ours would get."""

import contextlib

import pytest

from roma.config import schema
from roma.deploy import containers
from roma.domain.errors import LaunchError
from supervisor.broker.engine import NotFound

TEXT = """
name: d
models: {a: {path: /a, sla: {response_time: 1}}, b: {path: /b, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {direct: true, cgroup_root: /nowhere}}]
"""


class Engine:
    """Has containers by name: their labels."""

    def __init__(self, **present):
        self.present = present

    async def containers(self, labels):
        return [
            {"Labels": found, "Id": name, "State": "running"}
            for name, found in self.present.items()
            if labels.items() <= found.items()
        ]

    async def inspect(self, container):
        if container not in self.present:
            raise NotFound(container)
        labels = self.present[container]
        return {"Id": container, "Name": container, "Config": {"Labels": labels}, "HostConfig": {}}

    async def create(self, container, body):
        self.present[container] = body["Labels"]

    async def start(self, container):
        pass

    async def remove(self, container):
        del self.present[container]


async def test_it_is_named_with_its_worker_and_left_alone_and_ours_are_removed(
    tmp_path, monkeypatch
):
    engine = Engine(**{"d-w-b": {"made": "by hand"}})

    @contextlib.asynccontextmanager
    async def connected(_):
        yield engine

    monkeypatch.setattr(containers, "connected", connected)
    config = schema.parse(TEXT)
    named = r"^workers\.w: container d-w-b: label roma\.managed = None: must be d$"
    with pytest.raises(LaunchError, match=named):
        async with containers.containers(config, config.workers[0], tmp_path / "f", None):
            pass
    assert engine.present == {"d-w-b": {"made": "by hand"}}

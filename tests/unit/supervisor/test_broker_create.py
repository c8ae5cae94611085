"""A broker that replaces a container whose specification has changed."""

import asyncio

import pytest

from roma.config import schema
from supervisor.broker.broker import Broker
from supervisor.broker.containers import EXECUTABLE, owned
from supervisor.broker.engine import NotFound

TEXT = """
models: {a: {path: /a, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {cgroup_root: /nowhere}}]
"""


class Engine:
    """Has one container, `present`; `quotas` are those that were set, in cores."""

    def __init__(self, labels):
        self.labels, self.present = labels, "old"
        self.quotas = []

    async def inspect(self, container):
        return {
            "Id": self.present,
            "Name": container,
            "Config": {"Labels": {**self.labels, EXECUTABLE: "a@w"}},
            "HostConfig": {},
        }

    async def remove(self, container):
        assert container == "old"
        self.present = None

    async def create(self, *_):
        self.present = "new"

    async def start(self, _):
        assert self.present == "new"

    async def update_quota(self, container, *, quota_us, period_us):
        if container != self.present:
            raise NotFound(f"no such container: {container}")
        self.quotas.append(quota_us / period_us)


async def test_the_quota_of_a_container_that_was_replaced_is_set_at_once():
    config = schema.parse(TEXT)
    (worker,) = config.workers
    broker = Broker(config, worker, Engine(owned(config, worker)), lambda: 0.0)
    assert await broker.grant({"a@w": 1.0}) == {"a@w": 1.0}
    await broker.create("a@w")
    assert await broker.grant({"a@w": 0.5}) == {"a@w": 0.5}


@pytest.mark.looptime
async def test_a_container_that_is_made_while_no_supervisor_controls_gets_a_safe_share():
    """The engine starts it with its initial cores, beside the safe shares of the others."""
    config = schema.parse(TEXT)
    (worker,) = config.workers
    engine = Engine(owned(config, worker))
    broker = Broker(config, worker, engine, asyncio.get_running_loop().time)
    watching = asyncio.create_task(broker.watch_lease())
    await asyncio.sleep(10)
    assert engine.quotas == [2.0]
    await broker.create("a@w")
    await asyncio.sleep(10)
    assert engine.quotas == [2.0, 2.0]
    watching.cancel()

"""A broker that replaces a container whose specification has changed."""

from roma.config import schema
from supervisor.broker.broker import Broker
from supervisor.broker.containers import EXECUTABLE, owned
from supervisor.broker.engine import NotFound

TEXT = """
models: {a: {path: /a, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {cgroup_root: /nowhere}}]
"""


class Engine:
    """Has one container, `present`."""

    def __init__(self, labels):
        self.labels, self.present = labels, "old"

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

    async def update_quota(self, container, **_):
        if container != self.present:
            raise NotFound(f"no such container: {container}")


async def test_the_quota_of_a_container_that_was_replaced_is_set_at_once():
    config = schema.parse(TEXT)
    (worker,) = config.workers
    broker = Broker(config, worker, Engine(owned(config, worker)), lambda: 0.0)
    assert await broker.grant({"a@w": 1.0}) == {"a@w": 1.0}
    await broker.create("a@w")
    assert await broker.grant({"a@w": 0.5}) == {"a@w": 0.5}

"""A broker whose roma.yaml loses a model while a slow engine is asked about it."""

import asyncio

from roma.config import schema
from roma.domain.errors import BrokerRefused, EngineError
from supervisor.broker.broker import Broker
from supervisor.broker.containers import EXECUTABLE, owned
from tests.support.waiting import until

TEXT = """
models: {a: {path: /a, sla: {response_time: 1}}, b: {path: /b, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {cgroup_root: /nowhere}}]
"""


class SlowEngine:
    """Fails its first change, once `fails` is set."""

    def __init__(self, labels):
        self.labels, self.fails, self.asked = labels, asyncio.Event(), asyncio.Event()

    async def inspect(self, container):
        name = f"{container.rpartition('-')[2].rpartition('.')[2]}@w"
        labels = {**self.labels, EXECUTABLE: name}
        return {"Id": container, "Name": container, "Config": {"Labels": labels}, "HostConfig": {}}

    async def update_quota(self, *_, **__):
        self.asked.set()
        await self.fails.wait()
        raise EngineError("it is slow")


async def test_a_change_of_a_model_that_has_gone_is_refused_and_the_others_are_told():
    config = schema.parse(TEXT)
    (worker,) = config.workers
    engine = SlowEngine(owned(config, worker))
    broker = Broker(config, worker, engine, lambda: 0.0)
    first = asyncio.create_task(broker.grant({"a@w": 1.0}))
    await engine.asked.wait()
    second = asyncio.create_task(broker.grant({"a@w": 0.5, "b@w": 0.5}))
    await until(lambda: broker._changing["a@w"]._waiters)  # the second one waits for the first
    broker.follow(schema.parse(TEXT.replace("a: {path: /a, sla: {response_time: 1}}, ", "")))
    engine.fails.set()
    assert str((await first)["a@w"]).endswith("it is slow")
    found = await second
    assert isinstance(found["a@w"], BrokerRefused)
    assert str(found["a@w"]) == "executable = a@w: must be one of b@w"
    assert isinstance(found["b@w"], EngineError)

"""A launcher that is stopped while its containers are made or removed: none is left behind."""

import asyncio
import os
import threading

import pytest

from roma.config import schema
from roma.deploy.containers import WorkerContainers
from supervisor.broker.broker import Broker
from supervisor.broker.client import calling
from supervisor.broker.engine import Engine, NotFound
from supervisor.broker.server import LAUNCHER, _listening, launcher_application

CONFIG = schema.parse("""
models: {a: {path: /a, sla: {response_time: 1}}}
workers: [{name: w, backend: docker, cores: 2, docker: {cgroup_root: /nowhere}}]
""")
(WORKER,) = CONFIG.workers
OURS = frozenset({os.geteuid()})


class SlowEngine:
    """Has no image at first if `lacks_image`; what it is asked for ends once `goes_on` is set."""

    def __init__(self, *, lacks_image):
        self.lacks_image, self.present = lacks_image, {}
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def containers(self, _):
        return [
            {"Id": name, "Labels": body["Labels"], "State": "running"}
            for name, body in self.present.items()
        ]

    async def inspect(self, container):
        if container not in self.present:
            raise NotFound(container)
        labels = self.present[container]["Labels"]
        return {"Id": container, "Name": container, "Config": {"Labels": labels}, "HostConfig": {}}

    async def pull(self, _):
        await self._end()
        self.lacks_image = False

    async def create(self, container, body):
        if self.lacks_image:
            raise NotFound("no such image")
        await self._end()
        self.present[container] = body

    async def start(self, container):
        assert container in self.present

    async def remove(self, container):
        del self.present[container]

    async def _end(self):
        self.asked.set()
        await self.goes_on.wait()


async def test_an_image_that_arrives_later_becomes_no_container(tmp_path):
    engine, path = SlowEngine(lacks_image=True), tmp_path / LAUNCHER
    application = launcher_application(Broker(CONFIG, WORKER, engine, lambda: 0.0), OURS)
    async with _listening(application, path, OURS):
        async with calling(path, 60.0) as client:
            containers = WorkerContainers(CONFIG, WORKER, client, None)
            making = asyncio.create_task(containers.create())
            await engine.asked.wait()
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            await containers.remove()
        engine.goes_on.set()
    assert engine.present == {}


async def test_a_container_that_is_being_made_is_removed_once_it_is():
    engine = SlowEngine(lacks_image=False)
    broker = Broker(CONFIG, WORKER, engine, lambda: 0.0)
    making = asyncio.create_task(broker.create("a@w"))
    await engine.asked.wait()
    removing = asyncio.create_task(broker.remove("a@w"))
    await turns()
    engine.goes_on.set()
    await asyncio.gather(making, removing)
    assert engine.present == {}


@pytest.mark.parametrize(
    ("call", "last"),
    [
        (lambda engine: engine.create("c", {}), "create_container_from_config"),
        (lambda engine: engine.remove("c"), "remove_container"),
    ],
    ids=["made", "removed"],
)
async def test_whoever_is_cancelled_waits_until_the_engine_has_ended(call, last):
    """An engine refuses to remove a container twice at once, so a second removal waits."""

    class Client:
        def __init__(self):
            self.asked, self.goes_on, self.done = threading.Event(), threading.Event(), []

        def __getattr__(self, name):
            def answer(*_, **__):
                self.asked.set()
                self.goes_on.wait()
                self.done.append(name)
                return {"Id": "1"}

            return answer

        def close(self):
            pass

    class AnsweringEngine(Engine):
        async def _call(self, *_, **__):
            return {"ApiVersion": "1.41"}

    client = Client()
    engine = AnsweringEngine(None, "", "unix:///e", lambda _: client, str)
    asking = asyncio.create_task(call(engine))
    await asyncio.to_thread(client.asked.wait)
    asking.cancel()
    await turns()
    assert not asking.done()
    client.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert client.done[-1] == last


async def turns():
    """Let everything go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)

"""A model that is taken out of roma.yaml and comes back: its containers serve what it says then."""

import pytest

from roma.config import schema
from roma.deploy.containers import WorkerContainers
from roma.domain.errors import EngineError
from supervisor.broker.broker import Broker
from supervisor.broker.engine import NotFound

ALONE = "b: {path: /b, sla: {response_time: 1}}"
BOTH = ALONE + ", a: {path: /a, sla: {response_time: 1}}"


def config(models):
    worker = "{name: w, backend: docker, cores: 2, gpus: 1, docker: {cgroup_root: /nowhere}}"
    return schema.parse(f"name: d\nmodels: {{{models}}}\nworkers: [{worker}]")


class Engine:
    """Has containers by name: the bodies that they were made of; `made` are all that ever were."""

    def __init__(self, **present):
        self.present, self.made = present, []

    async def containers(self, labels):
        return [
            {"Labels": body["Labels"], "Id": name, "State": "running"}
            for name, body in self.present.items()
            if labels.items() <= body["Labels"].items()
        ]

    async def inspect(self, container):
        if container not in self.present:
            raise NotFound(container)
        labels = self.present[container]["Labels"]
        return {"Id": container, "Name": container, "Config": {"Labels": labels}, "HostConfig": {}}

    async def create(self, container, body):
        self.present[container] = body
        self.made.append(container)

    async def start(self, container):
        assert container in self.present

    async def remove(self, container):
        del self.present[container]

    def sources(self, container):
        return [mount["Source"] for mount in self.present[container]["HostConfig"]["Mounts"]]


async def started(text):
    made, engine = config(text), Engine()
    (worker,) = made.workers
    containers = WorkerContainers(made, worker, Broker(made, worker, engine, lambda: 0.0), None)
    await containers.create()
    return engine, containers


async def test_with_other_files_a_gpu_serves_those():
    engine, containers = await started(BOTH)
    await containers.follow(config(ALONE))
    assert engine.sources("d-w-gpu0") == ["/b", "/a"]  # it serves the others on
    await containers.follow(config(BOTH.replace("/a", "/other")))
    assert engine.sources("d-w-gpu0") == ["/b", "/other"]
    assert engine.sources("d-w-a") == ["/other"]


async def test_with_the_same_files_a_gpu_serves_on():
    engine, containers = await started(BOTH)
    await containers.follow(config(ALONE))
    await containers.follow(config(BOTH))
    assert engine.made.count("d-w-gpu0") == 1
    assert engine.made.count("d-w-a") == 2


async def test_a_container_that_was_removed_by_hand_is_made_anew():
    engine, containers = await started(BOTH)
    await engine.remove("d-w-a")
    await containers.follow(config(ALONE))
    await containers.follow(config(BOTH))
    assert engine.sources("d-w-a") == ["/a"]


async def test_what_could_not_be_made_is_made_once_the_file_is_mended(monkeypatch):
    engine, containers = await started(BOTH)
    await containers.follow(config(ALONE))
    start = engine.start

    async def fails(container):
        raise EngineError("no such directory")

    monkeypatch.setattr(engine, "start", fails)
    with pytest.raises(EngineError, match="no such directory"):
        await containers.follow(config(BOTH.replace("/a", "/nowhere")))
    monkeypatch.setattr(engine, "start", start)
    made = engine.made.count("d-w-gpu0")
    await containers.follow(config(BOTH))
    assert engine.made.count("d-w-gpu0") == made + 1
    assert engine.sources("d-w-gpu0") == ["/b", "/a"]

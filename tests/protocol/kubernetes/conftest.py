"""A fake API server, and what watches and changes its pods."""

from dataclasses import dataclass, field

import pytest

from roma.kubernetes.client import Client
from roma.kubernetes.credentials import ClusterCredentials, FixedToken
from roma.kubernetes.watch import PodWatch
from roma.tools.demo.ports import free_ports
from supervisor.actuators.pods import PodActuator
from tests.support.fake_api_server import FakeApiServer
from tests.support.waiting import beside, until


@dataclass
class Cluster:
    """The fake, a client of it, and a watch that runs."""

    api: FakeApiServer
    client: Client
    watch: PodWatch
    port: int
    actuators: list[PodActuator] = field(default_factory=list)

    async def add(self, *pods):
        """Create pods, and wait until the watch knows them."""
        for one in pods:
            self.api.put(one, "ADDED")
        names = {one["metadata"]["name"] for one in pods}
        await until(lambda: names <= self.watch.pods.keys())


@pytest.fixture
async def cluster(monkeypatch):
    """A cluster without pods; pauses between attempts are short."""
    monkeypatch.setattr("roma.kubernetes.watch.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("roma.kubernetes.watch.LONGEST_PAUSE", 0.02)
    (port,) = free_ports(1)
    api = FakeApiServer()
    await api.start(port)
    client = Client(ClusterCredentials(api.url, "models", FixedToken("t"), None, "a test"))
    watch = PodWatch(client, "models", "model-server", jitter=lambda: 0.5)
    async with beside(watch.run()):
        found = Cluster(api, client, watch, port)
        yield found
        for actuator in found.actuators:
            await actuator.close()
    await client.close()
    await api.stop()

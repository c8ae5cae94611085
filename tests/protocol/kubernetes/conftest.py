"""A fake API server, and what watches and changes its pods."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from roma.kubernetes.client import Client
from roma.kubernetes.credentials import ClusterCredentials, FixedToken
from roma.kubernetes.watch import PodWatch
from roma.tools.demo.ports import free_ports
from supervisor.actuators.pods import PodActuator
from tests.support.fake_api_server import FakeApiServer


@dataclass
class Cluster:
    """The fake, a client of it, and a watch that runs."""

    api: FakeApiServer
    client: Client
    watch: PodWatch
    port: int
    actuators: list[PodActuator] = field(default_factory=list)


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
    running = asyncio.create_task(watch.run())
    try:
        found = Cluster(api, client, watch, port)
        yield found
    finally:
        for actuator in found.actuators:
            await actuator.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await client.close()
        await api.stop()

"""Limits on the broker's wait for an engine: long for a container to start, short for a list."""

import asyncio
import threading

import pytest

from roma.domain.errors import EngineError
from supervisor.broker import engine as engines
from supervisor.broker.engine import Engine


class HungClient:
    """Answers once `goes_on` is set."""

    def __init__(self):
        self.goes_on = threading.Event()

    def containers(self, **_):
        self.goes_on.wait()

    def close(self):
        pass


class AnsweringEngine(Engine):
    async def _call(self, *_, **__):
        return {"ApiVersion": "1.41"}


def test_a_container_may_start_as_long_as_docker_s_package_waits():
    """A GPU without persistence mode takes half a minute, which `roma up` took for a failure."""
    client = engines._client("unix:///e", None, "1.41")
    assert client.timeout == 60
    client.close()


@pytest.mark.looptime
async def test_a_hung_engine_lists_no_containers_for_as_long():
    client = HungClient()
    engine = AnsweringEngine(None, "", "unix:///e", lambda _: client, engines.reason)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(EngineError, match=r"^engine unix:///e: list of .*: no answer in"):
                await engine.containers({})
    finally:
        client.goes_on.set()

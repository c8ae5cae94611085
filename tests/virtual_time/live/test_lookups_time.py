"""Look-ups of a model that loads, in virtual time: how long a client waits for its status."""

import asyncio

import pytest

from dispatcher.core import Dispatcher
from dispatcher.live.backends.backend_address import BackendAddress
from dispatcher.live.driver import Driver
from dispatcher.live.http.messages import Response
from dispatcher.live.http.routes import parse
from dispatcher.live.lookups import Lookups
from dispatcher.schedulers import registry
from roma.domain.events import ExecutorAdded
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Sla

pytestmark = pytest.mark.looptime

LOADING = Response(200, "application/json", None, b'{"state": "LOADING"}')


class LoadingPool:
    """A model server that reports its progress after some seconds, whatever it was told."""

    def __init__(self, seconds):
        self.seconds = seconds

    async def fetch(self, path, *, timeout):
        await asyncio.sleep(self.seconds)
        return LOADING


async def found(*seconds):
    core = Dispatcher(
        [ModelSpec("m", Sla(5.0), 10.0)],
        gpu=registry.GPU["roma"],
        cpu=registry.CPU["round_robin"],
    )
    endpoints = {f"m{i}": BackendAddress(LoadingPool(s)) for i, s in enumerate(seconds)}
    clock = asyncio.get_running_loop().time
    driver = Driver(core, endpoints, backend_timeout=60, clock=clock)
    for name in endpoints:
        driver.handle(ExecutorAdded(ExecutorSpec(name, Device.CPU, ("m",))))
    lookups = Lookups(driver, endpoints, timeout=60)
    return await lookups.http(parse("GET", "/v1/models/m"))


async def test_executables_that_hang_while_they_load_take_a_second_together(looptime):
    assert await found(100, 100, 100, 100) is None
    assert looptime == 1.0


async def test_one_that_hangs_does_not_hide_the_progress_of_another(looptime):
    assert await found(100, 0.1) == LOADING
    assert looptime == 0.6

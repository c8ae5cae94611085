"""A backend whose executables appear, move and vanish while the dispatcher runs."""

import asyncio

import orjson
import pytest

from dispatcher.live import app as dispatcher_app
from roma.config import schema
from roma.config.backends.registry import BACKENDS
from roma.config.backends.static import StaticBackend
from roma.config.diff import compare
from roma.config.workers import BackendKind, ExecutableConfig
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import FakeModelServer, GatewayHarness

FILE = """
models:
  m: {{sla: {{response_time: 5, deadline: 20}}, cpu: {{max: 1}}, max_waiting: 100}}
workers:
  - {{name: discovered, backend: static, cores: 4, executables: [{{url: 'http://127.0.0.1:1', model: m}}]}}
gateway: {{port: {port}, admin_port: {admin}, drain_timeout: 5, names: [x]}}
"""


class FakeSource:
    """Lists what a test says."""

    def __init__(self):
        self.listed = asyncio.Queue()

    async def lists(self):
        while True:
            yield await self.listed.get()

    def list(self, **urls):
        self.listed.put_nowait(
            tuple(ExecutableConfig(name=name, url=url, model="m") for name, url in urls.items())
        )


class FakeBackend(StaticBackend):
    """The file gives addresses, and a source gives others."""

    discovers = True

    def __init__(self, source):
        self._source = source

    def source(self, config, worker):
        return self._source


@pytest.fixture
async def discovered(monkeypatch):
    """A dispatcher whose only worker is of the fake backend, and two model servers."""
    source = FakeSource()
    monkeypatch.setitem(BACKENDS, BackendKind.STATIC, FakeBackend(source))
    harness = GatewayHarness()
    async with harness.stack:
        port, admin, *ports = free_ports(4)
        harness.source = source
        harness.backends = [FakeModelServer(behind) for behind in ports]
        for backend in harness.backends:
            await harness.stack.enter_async_context(backend)
        await harness.serve(schema.parse(FILE.format(port=port, admin=admin)))
        yield harness


def live(harness):
    return sorted(e.spec.name for e in harness.core.executors if e.live)


async def test_what_the_file_lists_is_not_served_before_the_source_lists_it(discovered):
    assert list(discovered.core.executors) == []
    status, body, _ = await discovered.predict()
    assert (status, b"no executable of model m is ready" in body) == (503, True)


async def test_executables_appear_move_and_vanish_without_a_lost_request(discovered):
    first, second = discovered.backends
    discovered.source.list(a=first.url)
    await discovered.until(lambda: live(discovered) == ["a@discovered"])
    assert (await discovered.predict())[0] == 200

    discovered.source.list(a=first.url, b=second.url)  # a second appears
    await discovered.until(lambda: live(discovered) == ["a@discovered", "b@discovered"])

    first.gate = asyncio.Event()
    running = asyncio.create_task(discovered.predict())
    await discovered.until(lambda: first.running + second.running == 1)
    if second.running:  # the policy chose it: wait for one on the first
        pytest.fail("the executor with the lowest name goes first")
    discovered.source.list(b=second.url)  # the first is told to end while it answers
    await asyncio.sleep(0.05)
    answers = [await discovered.predict() for _ in range(3)]
    assert [status for status, *_ in answers] == [200] * 3
    first.gate.set()
    assert (await running)[0] == 200
    await discovered.until(lambda: live(discovered) == ["b@discovered"])
    assert (len(first.seen), len(second.seen)) == (2, 3)

    looks = len(first.looks)
    discovered.source.list(b=first.url)  # the same name at another address
    await discovered.until(
        lambda: len(first.looks) > looks and live(discovered) == ["b@discovered"]
    )
    assert (await discovered.predict())[0] == 200
    assert (len(first.seen), len(second.seen)) == (3, 3)

    discovered.source.list()
    await discovered.until(lambda: list(discovered.core.executors) == [])
    assert (await discovered.predict())[0] == 503
    queue = discovered.queue
    assert queue.arrivals == 7
    assert queue.cpu.answered == 6
    assert queue.rejected.total() == 1


async def test_a_reload_of_the_file_keeps_what_the_source_listed(discovered):
    discovered.source.list(a=discovered.backends[0].url)
    await discovered.until(lambda: live(discovered) == ["a@discovered"])
    await discovered.registry.follow(discovered.loaded)
    assert live(discovered) == ["a@discovered"]
    other = discovered.loaded.workers[0].model_copy(
        update={"executables": (ExecutableConfig(url="http://127.0.0.1:2", model="m"),)}
    )
    changed = discovered.loaded.model_copy(update={"workers": (other,)})
    assert compare(discovered.loaded, changed).added == ()  # no restart: the source lists them


async def test_a_source_that_fails_ends_the_program(monkeypatch):
    class Broken(FakeSource):
        async def lists(self):
            raise ZeroDivisionError
            yield ()

    monkeypatch.setitem(BACKENDS, BackendKind.STATIC, FakeBackend(Broken()))
    port, admin = free_ports(2)
    loaded = schema.parse(FILE.format(port=port, admin=admin))
    with pytest.raises(ExceptionGroup):
        async with dispatcher_app.running(loaded):
            await asyncio.sleep(10)


async def test_discovered_executables_without_a_supervisor_are_said_to_be_uncontrolled(discovered):
    discovered.source.list(a=discovered.backends[0].url)
    await discovered.until(lambda: live(discovered) == ["a@discovered"])
    async with asyncio.timeout(30):
        while not (worker := await _worker(discovered))["uncontrolled"]:
            await asyncio.sleep(0.1)
    assert worker["controllable"] == 1
    assert "its supervisor does not answer" in worker["uncontrolled"]


async def _worker(harness):
    _, body = await harness.get("/control/v1/dashboard", harness.admin)
    (worker,) = orjson.loads(body)["workers"]
    return worker

"""Health checks of executables: what they meet, and what they tell."""

import asyncio
import contextlib
import json
import tracemalloc
from types import SimpleNamespace

import pytest

from dispatcher.live import health_checks
from dispatcher.live.backends.http_client import Pool
from dispatcher.live.health_checks import MOST_STATUS, watch
from dispatcher.live.http.messages import Response
from dispatcher.state.lifecycle import ExecutorState
from roma.config import schema
from roma.domain.errors import BackendLost, BackendTimeout, BackendUnreachable
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import FakeModelServer

AVAILABLE = Response(
    200, "application/json", None, b'{"model_version_status": [{"state": "AVAILABLE"}]}'
)


class Watched:
    """A driver that notes what the watch of one executable reports."""

    def __init__(self, state):
        self.suspects = {"m@w": asyncio.Event()}
        self.core = SimpleNamespace(executors=self)
        self.state = state
        self._seen = asyncio.Queue()

    def on_ready(self, executor):
        self._seen.put_nowait("ready")

    def on_lost(self, executor, why):
        self._seen.put_nowait(f"lost: {why}")

    on_unavailable = on_lost

    def __getitem__(self, executor):
        return self

    def lacks_more(self, executor, missing):
        return False

    def on_missing(self, executor, missing):
        assert not missing

    async def next(self):
        return await asyncio.wait_for(self._seen.get(), 10)


class Scripted:
    """An executable's pool: its health checks end as listed, and then well.

    `fresh` is how those over new connections fail.
    """

    host, port, socket, keeps = "127.0.0.1", 1, None, True

    def __init__(self, *ends, fresh=None):
        self.ends, self.fresh = list(ends), fresh

    async def fetch(self, *_, timeout, most, is_fresh=False):
        end = self.ends.pop(0) if self.ends else AVAILABLE
        if is_fresh and self.fresh is not None:
            end = self.fresh
        if isinstance(end, Exception):
            raise end
        return end


@contextlib.asynccontextmanager
async def watching(pool, state=ExecutorState.IDLE):
    """Watch an executable with this pool; yield the driver that is told."""
    driver = Watched(state)
    endpoint = SimpleNamespace(pool=pool, channel=None)
    task = asyncio.create_task(watch("m@w", ["m"], endpoint, driver))
    try:
        yield driver
    finally:
        task.cancel()


NONSENSE = (
    b"[" * 1200,
    b'{"a":' * 100_000,
    b'{"model_version_status": 7}',
    b'{"model_version_status": ["AVAILABLE"]}',
    b"\xff",
    b" " * (MOST_STATUS + 1),
)


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
async def test_a_status_that_is_nonsense_is_that_executables_trouble(harness, body):
    await harness.open(backends=2)
    broken, healthy = harness.backends
    broken.status_body = body
    for doubt in harness.service.driver.suspects.values():
        doubt.set()
    await harness.until(lambda: len([e for e in harness.core.executors if e.live]) == 1)
    assert [(await harness.predict())[0] for _ in range(4)] == [200] * 4
    assert broken.seen == []
    broken.status_body = None
    await harness.until(lambda: all(e.live for e in harness.core.executors), limit=10)


async def test_whatever_the_watch_of_an_executable_meets_it_goes_on(monkeypatch):
    monkeypatch.setattr(health_checks, "CHECK", 0.0)
    async with watching(Scripted(RecursionError("maximum recursion depth exceeded"))) as driver:
        assert await driver.next() == (
            "lost: cannot be watched: RecursionError('maximum recursion depth exceeded')"
        )
        assert await driver.next() == "ready"


async def test_a_server_that_answers_no_status_while_it_computes_is_not_lost(harness, monkeypatch):
    """As one with a single worker; it gets no more requests meanwhile."""
    monkeypatch.setattr(health_checks, "HANG", 0.1)
    monkeypatch.setattr(health_checks, "CHECK", 0.05)
    await harness.open(cores=2)
    (backend,), (executor,) = harness.backends, harness.core.executors
    calls = [await harness.held()]
    backend.status_gate = backend.gate
    await harness.until(lambda: executor.suspected)
    calls.append(asyncio.create_task(harness.predict()))
    await harness.until(lambda: len(harness.queue) == 1)
    await asyncio.sleep(0.3)
    assert (backend.running, executor.losses) == (1, 0)
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]
    # One that computes nothing is lost.
    backend.status_gate = asyncio.Event()
    await harness.until(lambda: not executor.live)
    backend.status_gate.set()
    assert executor.losses == 1


async def test_a_server_that_refuses_connections_ends_what_it_runs(harness, monkeypatch):
    """As one that shuts down, or whose published port is away while its engine restarts."""
    monkeypatch.setattr(health_checks, "CHECK", 0.05)
    await harness.open(cores=2)
    (backend,), (executor,) = harness.backends, harness.core.executors
    calls = [await harness.held()]
    await backend.refuse()
    for idle in list(harness.service.endpoints["m.0@local"].pool._idle):
        idle.abort()
    calls.append(asyncio.create_task(harness.predict()))
    await harness.until(lambda: executor.suspected and len(harness.queue) == 1)
    assert (backend.running, executor.losses) == (1, 0)
    await backend.accept()
    backend.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]
    assert (harness.queue.failed, executor.losses) == (0, 0)


ON_GPUS = """
models: {{a: {{sla: {{response_time: 5}}}}, b: {{sla: {{response_time: 5}}}}}}
workers: [{{backend: static, cores: 1, executables: [{gpus}]}}]
gateway: {{port: {port}, admin_port: {admin}}}
"""


async def on_gpus(harness, count):
    """Run a gateway of GPUs; return their servers, which are not started."""
    port, admin, *ports = free_ports(2 + count)
    backends = [FakeModelServer(behind) for behind in ports]
    for backend in backends:
        harness.stack.push_async_callback(backend.stop)
    gpus = ", ".join(f'{{url: "{backend.url}", device: gpu}}' for backend in backends)
    await harness.serve(schema.parse(ON_GPUS.format(gpus=gpus, port=port, admin=admin)))
    return backends


async def test_a_gpu_that_lacks_a_model_is_back_as_soon_as_it_is_of_use(harness, monkeypatch):
    monkeypatch.setattr(health_checks, "CHECK", 1000.0)
    less, more = await on_gpus(harness, 2)
    less.broken["b"] = "no such op"
    await less.start()
    first, second = harness.core.executors
    await harness.until(lambda: first.live)
    await more.start()
    await harness.until(lambda: second.live and not first.live)
    assert (await harness.predict(path="/v1/models/b:predict"))[0] == 200
    more.kill_connections()
    await more.stop()
    await harness.until(lambda: first.live and not second.live)
    assert (await harness.predict(path="/v1/models/a:predict"))[0] == 200


async def test_a_model_that_a_gpu_cannot_load_costs_the_others_nothing(
    harness, monkeypatch, caplog
):
    monkeypatch.setattr(health_checks, "CHECK", 0.05)
    (backend,) = await on_gpus(harness, 1)
    backend.broken["b"] = "no such op"
    await backend.start()
    (executor,) = harness.core.executors
    await harness.until(lambda: executor.live)
    assert (await harness.predict(path="/v1/models/a:predict"))[0] == 200
    assert (await harness.predict(path="/v1/models/b:predict"))[0] == 503
    why = "gpu0@local: model b is not available: no such op"
    status, answer = await harness.get("/v1/models/b")
    (version,) = json.loads(answer)["model_version_status"]  # as the server says it
    assert (status, version["state"]) == (200, "END")
    assert harness.service.not_ready("b") == f"no executable of model b is ready: {why}"
    _, metrics = await harness.get("/metrics", harness.admin)
    assert f'reason="{why}"'.encode() in metrics
    shown = {}
    async with asyncio.timeout(60):
        while shown != {"a": "ok", "b": f"unavailable: {why}"}:  # rows are made once a second
            await asyncio.sleep(0.05)
            _, view = await harness.get("/control/v1/dashboard", harness.admin)
            rows = {row["model"]: row for row in json.loads(view)["models"]}
            shown = {
                model: "ok" if row["state"] == "ok" else row["why"] for model, row in rows.items()
            }
    assert (rows["a"]["executables"][0]["reason"], rows["b"]["state"]) == ("", "down")
    await asyncio.sleep(0.2)  # some more checks
    (told,) = [r.getMessage() for r in caplog.records if "serves its other models" in r.msg]
    assert told.endswith("model b is not available: no such op")
    backend.broken.clear()
    await harness.until(lambda: not executor.missing)
    assert (await harness.predict(path="/v1/models/b:predict"))[0] == 200
    _, metrics = await harness.get("/metrics", harness.admin)
    assert b"executable_fault_info{" not in metrics


async def test_a_look_that_began_before_the_trouble_clears_no_suspicion():
    class Dying(Scripted):
        async def fetch(self, *asked, **how):
            if len(self.ends) == 3:  # an answer breaks off while the status is on its way
                self.doubt.set()
            return await super().fetch(*asked, **how)

    gone = 2 * [BackendLost("gone")]  # over a new connection, too
    async with watching(pool := Dying(AVAILABLE, *gone)) as driver:
        pool.doubt = driver.suspects["m@w"]
        assert await driver.next() == "lost: gone"  # and not ready before


async def test_no_silent_connection_holds_up_a_server_that_serves_one_at_a_time(monkeypatch):
    monkeypatch.setattr(health_checks, "CHECK", 0.01)
    asked = []

    async def serve(reader, writer):
        asked.append(await reader.read(1000))
        text = (
            f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(AVAILABLE.body)}\r\n\r\n"
        )
        writer.write(text.encode() + AVAILABLE.body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = Pool(*server.sockets[0].getsockname())
        async with watching(pool) as driver:
            assert [await driver.next() for _ in range(5)] == ["ready"] * 5
        await pool.close()
    assert all(asked)


async def test_what_a_server_says_unasked_on_a_silent_connection_is_not_kept():
    said = asyncio.Event()

    async def speak(_, writer):
        for _ in range(1000):
            writer.write(bytes(2**16))
            await writer.drain()
        said.set()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        pool = Scripted()
        pool.host, pool.port = server.sockets[0].getsockname()
        tracemalloc.start()
        async with watching(pool) as driver:
            try:
                await asyncio.wait_for(said.wait(), 10)
                assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
            finally:
                tracemalloc.stop()
            assert [await driver.next() for _ in range(2)] == ["ready"] * 2  # its end is seen


@pytest.mark.parametrize("state", [ExecutorState.SUSPECTED, ExecutorState.LOST])
@pytest.mark.parametrize("refusal", [BackendUnreachable("refused"), BackendLost("closed")])
async def test_a_doubted_server_must_accept_a_new_connection(refusal, state):
    """Its idle connections may go on where a front refuses new ones."""
    async with watching(Scripted(fresh=refusal), state) as driver:
        assert await driver.next() == f"lost: {refusal}"
        driver.state = ExecutorState.IDLE
        # A second look may have begun before.
        assert "ready" in [await driver.next() for _ in range(2)]


async def test_a_doubted_server_that_serves_one_connection_answers_on_that():
    pool = Scripted(fresh=BackendTimeout("no answer within 10 s"))
    async with watching(pool, ExecutorState.SUSPECTED) as driver:
        assert await driver.next() == "ready"


async def test_a_look_over_a_stale_connection_is_no_loss():
    stale = BackendLost("connection closed before the answer: reset")
    async with watching(Scripted(stale)) as driver:
        assert await driver.next() == "ready"

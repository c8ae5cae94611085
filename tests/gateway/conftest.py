"""A real dispatcher on real sockets, in front of a model server that behaves as a test says."""

import asyncio
import contextlib

import aiohttp
import pytest
import uvloop
from aiohttp import web

from dispatcher.live import app as dispatcher_app
from roma import config
from tests.support.up import free_ports


class ModelServer:
    """Speaks TF Serving's API; `behave(name, body)` decides each answer (default: echo)."""

    def __init__(self, port):
        self.port = port
        self.seen = []
        self.looks = []  # headers of status requests
        self.connections = 0
        self.running = 0
        self.most_running = 0
        self.available = True
        self.gate = None  # an asyncio.Event that answers wait for
        self.behave = None
        self._runner = None

    async def start(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models/{model}", self._status)
        app.router.add_get("/v1/models/{model}/metadata", self._metadata)
        app.router.add_post("/v1/models/{rest:.*}", self._predict)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self):
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kill_connections(self):
        """Reset every connection, as the kernel does when a process dies."""
        for connection in self._runner.server.connections:
            connection.transport.abort()

    async def _status(self, request):
        self.looks.append(dict(request.headers))
        state = "AVAILABLE" if self.available else "LOADING"
        version = {"version": "1", "state": state, "status": {"error_code": "OK"}}
        return web.json_response({"model_version_status": [version]})

    async def _metadata(self, request):
        return web.json_response({"model_spec": {"name": request.match_info["model"]}})

    async def _predict(self, request):
        body = await request.read()
        self.seen.append((request.path, dict(request.headers), body))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.behave is not None:
                return await self.behave(request, body)
            return web.Response(body=body, content_type="application/json")
        finally:
            self.running -= 1


YAML = """
models:
  m:
    sla: {{response_time: {response_time}, deadline: {deadline}}}
    cpu: {{max: {cores}, initial: {cores}}}
    max_waiting: {max_waiting}
workers:
  - backend: static
    cores: 16
    executables:
{executables}
gateway: {{port: {port}, admin_port: {admin}, max_body_bytes: {max_body}, backend_timeout: {timeout}, drain_timeout: 5, traces: {traces}, limits: {limits}, {gateway}}}
log: {{requests: {requests}}}
"""


class Stage:
    """One gateway, its backends and a client session."""

    def __init__(self):
        self.backends = []
        self.stack = contextlib.AsyncExitStack()

    async def open(
        self,
        *,
        backends=1,
        start=True,
        cores=1,
        response_time=5,
        deadline=20,
        max_waiting=100,
        max_body=1 << 20,
        timeout=10,
        traces=False,
        requests="failed",
        limits="{}",
        gateway="",
    ):
        port, admin, *ports = free_ports(2 + backends)
        self.backends = [ModelServer(p) for p in ports]
        listed = "\n".join(f"      - {{url: 'http://127.0.0.1:{p}', model: m}}" for p in ports)
        text = YAML.format(
            response_time=response_time,
            deadline=deadline,
            cores=cores,
            max_waiting=max_waiting,
            executables=listed,
            port=port,
            admin=admin,
            max_body=max_body,
            timeout=timeout,
            traces=str(traces).lower(),
            requests=requests,
            limits=limits,
            gateway=gateway,
        )
        for backend in self.backends:
            if start:
                await backend.start()
            self.stack.push_async_callback(backend.stop)
        self.port = port
        await self.serve(
            config.parse(text), f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        )
        if start:
            await self.until(lambda: all(e.live for e in self.core.executors))
        return self

    async def serve(self, loaded, url, admin):
        """Run a dispatcher of this configuration."""
        self.url, self.admin = url, admin
        self.running = contextlib.AsyncExitStack()
        self.stack.push_async_callback(self.running.aclose)
        running = await self.running.enter_async_context(dispatcher_app.running(loaded))
        self.service, self.server, self.roster = running.service, running.server, running.roster
        self.gateway = self.server.handler
        self.core = self.service.driver.core
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())

    async def close_gateway(self):
        """Stop the gateway as SIGTERM does; leave a connection open that is older."""
        self.idle_connection = await asyncio.open_connection("127.0.0.1", self.port)
        # Until it has been answered, the connection may not have been accepted yet.
        self.idle_connection[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await self.idle_connection[0].readuntil(b"ok")
        await self.running.aclose()

    @property
    def connections(self):
        """The gateway's client connections."""
        return list(self.server.connections)

    async def until(self, condition, limit=10):
        """Wait for something that must happen; the limit only bounds a failing test."""
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(0.005)

    async def predict(self, body=b'{"instances": [1]}', path="/v1/models/m:predict", **options):
        async with self.session.post(self.url + path, data=body, **options) as response:
            return response.status, await response.read(), response.headers

    async def get(self, path, base=None):
        async with self.session.get((base or self.url) + path) as response:
            return response.status, await response.read()

    @property
    def queue(self):
        return self.core.queues["m"]


@pytest.fixture
async def stage():
    stage = Stage()
    async with stage.stack:
        yield stage
    for backend in stage.backends:
        await backend.stop()


def pytest_asyncio_loop_factories(config, item):
    """The dispatcher runs on uvloop, whose transports are not asyncio's: test both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

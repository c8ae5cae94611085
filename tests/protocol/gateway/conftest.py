"""A real dispatcher on real sockets, in front of a model server that behaves as a test says."""

import asyncio
import contextlib
import json
import socket
import struct
import tempfile
from pathlib import Path

import aiohttp
import grpc
import pytest
import uvloop
from aiohttp import web
from grpc_reflection.v1alpha import reflection

import roma
from dispatcher.live import app as dispatcher_app
from dispatcher.live.aiohttp_endpoint import ENDPOINT
from dispatcher.live.backends import http_client
from dispatcher.live.planned import client as device_client
from roma.config import schema
from roma.tools.demo.ports import free_ports
from tests.support.raw_http import Client
from tests.support.waiting import until


class FakeModelServer:
    """Speaks TF Serving's API; `behave(name, body)` decides each answer (default: echo)."""

    def __init__(self, port, path=None):
        self.port = port
        self.path = path  # a Unix socket in place of the port
        self.seen = []
        self.looks = []  # headers of status requests
        self.lookups = []  # client's address, path and headers of metadata and OIP look-ups
        self.lookup_gate = None  # an asyncio.Event that their answers wait for
        self.status_gate = None  # the same for answers to health checks
        self.lookup_status = 200
        self.looking_up = self.most_looking_up = 0
        self.connections = 0
        self.running = 0
        self.most_running = 0
        self.available = True
        self.broken = {}  # why a model cannot be loaded
        self.status_body = None
        self.gate = None  # an asyncio.Event that answers wait for
        self.behave = None
        self._runner = None

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def start(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models/{model}", self._status)
        app.router.add_get("/v1/models/{model}/metadata", self._metadata)
        app.router.add_get("/v2/models/{model}{rest:.*}", self._oip)
        app.router.add_post("/{protocol:v1|v2}/models/{rest:.*}", self._predict)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.accept()

    async def accept(self):
        if self.path is not None:
            site = web.UnixSite(self._runner, self.path)
        else:
            site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()

    async def refuse(self):
        """Refuse new connections; those that there are go on."""
        for site in list(self._runner.sites):
            await site.stop()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}" if self.path is None else f"unix://{self.path}"

    async def stop(self):
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kill_connections(self):
        """Reset every connection, as the kernel does when a process dies."""
        for connection in self.open_connections:
            connection.transport.abort()

    @property
    def open_connections(self):
        return self._runner.server.connections

    async def _status(self, request):
        self.looks.append(dict(request.headers))
        if self.status_gate is not None:
            await self.status_gate.wait()
        if self.status_body is not None:
            return web.Response(body=self.status_body, content_type="application/json")
        state = "AVAILABLE" if self.available else "LOADING"
        version = {"version": "1", "state": state, "status": {"error_code": "OK"}}
        why = self.broken.get(request.match_info["model"])
        if why is not None:
            status = {"error_code": "INTERNAL", "error_message": why}
            version = {"version": "1", "state": "END", "status": status}
        return web.json_response({"model_version_status": [version]})

    async def _metadata(self, request):
        body = {"model_spec": {"name": request.match_info["model"]}}
        return await self._look_up(request, body)

    async def _oip(self, request):
        return await self._look_up(
            request, {"name": request.match_info["model"], "path": request.path}
        )

    async def _look_up(self, request, body):
        peer = request.transport.get_extra_info("peername")  # of a Unix socket it is empty
        self.lookups.append((peer, request.path, dict(request.headers)))
        self.looking_up += 1
        self.most_looking_up = max(self.most_looking_up, self.looking_up)
        try:
            if self.lookup_gate is not None:
                await self.lookup_gate.wait()
            return web.json_response(body, status=self.lookup_status)
        finally:
            self.looking_up -= 1

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


def answering(document, status=200, **how):
    """Return the behaviour of a model server that gives every request this answer."""

    async def behave(request, body):
        return web.json_response(document, status=status, **how)

    return behave


def saying(data, *, closes=False):
    """Return the behaviour of one that says these bytes in place of an answer."""

    async def behave(request, body):
        request.transport.write(data)
        if closes:
            request.transport.close()
        await asyncio.sleep(10)

    return behave


def aborting(code, text, trailing=()):
    """Return the behaviour of a gRPC model server that ends every call so."""

    async def behave(request, context):
        await context.abort(code, text, trailing)

    return behave


class GrpcModelServer:
    """Speaks gRPC: any unary method, bytes in and out; `behave(request, context)` decides."""

    def __init__(self, port):
        self.port = port
        self.seen = []  # method, metadata, bytes, seconds left
        self.running = 0
        self.cancelled = 0
        self.gate = None
        self.behave = None
        self._server = None
        self._cable = None
        self._wires = set()

    async def start(self):
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        self._server.add_generic_rpc_handlers((AnyMethod(self._answer),))
        reflection.enable_server_reflection(["grpc.health.v1.Health"], self._server)
        inside = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._cable = await asyncio.get_running_loop().create_server(
            lambda: Wire(self._wires, inside), "127.0.0.1", self.port
        )

    async def stop(self):
        """Die as a process does: the kernel resets every connection, and nobody listens."""
        if self._server is not None:
            self._cable.close()
            for wire in list(self._wires):
                wire.cut()
            await self._server.stop(0)
            self._server = None

    async def shut_down(self):
        """Refuse connections and new calls; return a task that ends with the calls that run."""
        self._cable.close()
        return asyncio.ensure_future(self._server.stop(60))

    async def _answer(self, method, request, context):
        metadata = context.invocation_metadata()
        self.seen.append((method, list(metadata), request, context.time_remaining()))
        self.running += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.behave is not None:
                return await self.behave(request, context)
            return request
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


class Wire(asyncio.Protocol):
    """A connection to a server behind, which can be cut: gRPC's own end says goodbye."""

    def __init__(self, wires, port=None, other=None):
        self.wires, self.port, self.other = wires, port, other
        self.transport, self.early = None, []

    def connection_made(self, transport):
        self.transport = transport
        self.wires.add(self)
        if self.other is None:
            self.connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self):
        _, self.other = await asyncio.get_running_loop().create_connection(
            lambda: Wire(self.wires, other=self), "127.0.0.1", self.port
        )
        for data in self.early:
            self.other.transport.write(data)

    def data_received(self, data):
        if self.other is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc):
        self.wires.discard(self)
        if self.other is not None:
            self.other.transport.close()

    def cut(self):
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, answer):
        self._answer = answer

    def service(self, details):
        async def handle(request, context):
            return await self._answer(details.method, request, context)

        return grpc.unary_unary_rpc_method_handler(handle)


YAML = """
models:
  m:
    sla: {{response_time: {response_time}, deadline: {deadline}}}
    cpu: {{max: {cores}, initial: {cores}}}
    max_waiting: {max_waiting}
    {model}
workers:
  - backend: static
    cores: 16
    executables:
{executables}
gateway: {{port: {port}, admin_port: {admin}, grpc_port: {grpc_port}, tls: {tls}, max_body_bytes: {max_body}, backend_timeout: {timeout}, drain_timeout: {drain}, traces: {traces}, names: {names}, limits: {limits}, {gateway}}}
log: {{requests: {requests}}}
"""


class GatewayHarness:
    """A gateway, its backends and a client session."""

    def __init__(self):
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
        timeout=60,
        drain=5,
        traces=False,
        requests="failed",
        limits="{}",
        gateway="",
        tls=None,
        model="",
        names="[x]",
        speaks_grpc=False,
        with_grpc=False,
        sockets=None,
        more="",
    ):
        port, admin, grpc_port, *ports = free_ports(3 + 2 * backends)
        paths = [sockets and f"{sockets}/{i}.sock" for i in range(backends)]
        self.backends = [FakeModelServer(p, path) for p, path in zip(ports, paths, strict=False)]
        self.grpc_backends = [GrpcModelServer(p) for p in ports[backends:] if speaks_grpc]
        second = [f", grpc: '127.0.0.1:{b.port}'" for b in self.grpc_backends] or [""] * backends
        listed = "\n".join(
            f"      - {{url: '{b.url}', model: m{address}{more}}}"
            for b, address in zip(self.backends, second, strict=True)
        )
        text = YAML.format(
            response_time=response_time,
            deadline=deadline,
            cores=cores,
            max_waiting=max_waiting,
            executables=listed,
            port=port,
            admin=admin,
            grpc_port=grpc_port if with_grpc or speaks_grpc else "null",
            max_body=max_body,
            timeout=timeout,
            drain=drain,
            traces=str(traces).lower(),
            requests=requests,
            limits=limits,
            gateway=gateway,
            tls=json.dumps(tls),
            model=model,
            names=names,
        )
        for backend in [*self.backends, *self.grpc_backends]:
            if start:
                await backend.start()
            self.stack.push_async_callback(backend.stop)
        self.text = text
        await self.serve(schema.parse(text))
        if start:
            await self.until(lambda: all(e.live for e in self.core.executors))
        return self

    async def serve(self, loaded):
        """Run a dispatcher of this configuration."""
        gateway = loaded.gateway
        self.url, self.admin, self.loaded = gateway.url, gateway.admin_url, loaded
        self.port, self.grpc_port = gateway.port, gateway.grpc_port
        self.running = contextlib.AsyncExitStack()
        self.stack.push_async_callback(self.running.aclose)
        running = await self._run()
        self.admin_doors = running.admin
        self.service, self.server, self.registry = running.service, running.server, running.registry
        self.grpc = running.grpc
        self.gateway = self.server.handler
        self.core = self.service.driver.core
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())

    async def _run(self):
        return await self.running.enter_async_context(dispatcher_app.running(self.loaded))

    def bound(self, max_body=None, **limits):
        """Change limits of bodies, connections and what they hold."""
        changed = self.server.limits.model_copy(update=limits)
        self.server.bound(changed, max_body or self.server.bounds.max_body_bytes)

    def stop_clock(self, after=0.0):
        """Let the dispatcher's clock stand still, so many seconds from now."""
        stopped = self.service.driver.clock() + after
        self.service.driver.clock = lambda: stopped

    async def unreachable(self):
        """Let the first executable refuse every connection; return its name."""
        name = next(e.spec.name for e in self.core.executors)
        pool = self.service.endpoints[name].pool
        pool.port = 1  # nobody listens there
        pool.socket = pool.socket and f"{pool.socket}.gone"
        for connection in list(pool._all):
            connection.abort()
        await asyncio.sleep(0)
        return name

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

    async def until(self, condition, limit=60):
        """Wait for something that must happen; the limit only bounds a failing test."""
        await until(condition, limit)

    async def predict(self, body=b'{"instances": [1]}', path="/v1/models/m:predict", **options):
        async with self.session.post(self.url + path, data=body, **options) as response:
            return response.status, await response.read(), response.headers

    async def held(self, **how):
        """Return a request that the first backend computes until its gate opens."""
        backend = self.backends[0]
        backend.gate = asyncio.Event()
        asked = asyncio.create_task(self.predict(**how))
        await self.until(lambda: backend.running == 1)
        return asked

    async def get(self, path, base=None):
        async with self.session.get((base or self.url) + path) as response:
            return response.status, await response.read()

    @property
    def channel(self):
        """A client of the gRPC port."""
        return grpc.aio.insecure_channel(
            f"127.0.0.1:{self.grpc_port}",
            options=[
                ("grpc.enable_retries", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", -1),
            ],
        )

    async def call(self, method, request, *, channel=None, **options):
        """Call a gRPC method with bytes; return code, answer, text and trailing metadata."""
        async with contextlib.AsyncExitStack() as stack:
            channel = channel or await stack.enter_async_context(self.channel)
            call = channel.unary_unary(method)(request, **options)
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                trailing = dict(error.trailing_metadata() or ())
                return error.code(), b"", error.details(), trailing
            return grpc.StatusCode.OK, answer, "", dict(await call.trailing_metadata())

    @property
    def queue(self):
        return self.core.queues["m"]


class AiohttpHarness(GatewayHarness):
    """The same served by aiohttp: the endpoint alone, or mounted at a prefix of a program."""

    def __init__(self, prefix, middlewares=()):
        super().__init__()
        self.prefix = prefix
        self.middlewares = middlewares

    async def _run(self):
        endpoint = program = roma.aiohttp_app(self.loaded)
        if self.prefix:
            program = web.Application(middlewares=self.middlewares)
            program.add_subapp(self.prefix, endpoint)
        self.url += self.prefix
        self.runner = web.AppRunner(program, access_log=None, shutdown_timeout=5)
        self.running.push_async_callback(self.runner.cleanup)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.endpoint = endpoint[ENDPOINT]
        return self.endpoint.serving


@pytest.fixture
def sockets():
    """A directory for Unix sockets with a short name: the kernel takes 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        yield Path(directory)


@pytest.fixture(params=["port", "socket"])
def behind(request, sockets):
    """Backends behind ports, and behind Unix sockets: what `GatewayHarness.open` takes as `sockets`."""
    return sockets if request.param == "socket" else None


@pytest.fixture(params=["server", "aiohttp", "mounted"])
async def front_end(request):
    """A gateway behind each of the HTTP front ends."""
    prefixes = {"aiohttp": "", "mounted": "/inference"}
    is_own = request.param == "server"
    harness = GatewayHarness() if is_own else AiohttpHarness(prefixes[request.param])
    async with harness.stack:
        yield harness


@pytest.fixture(autouse=True)
def _nobody_is_given_up_because_the_machine_is_busy(monkeypatch):
    monkeypatch.setattr(device_client, "SILENCE", 60.0)
    monkeypatch.setattr(http_client, "CONNECT_TIMEOUT", 60.0)


@pytest.fixture
async def harness():
    harness = GatewayHarness()
    async with harness.stack:
        yield harness


def pytest_asyncio_loop_factories(config, item):
    """The dispatcher runs on uvloop, whose transports are not asyncio's: test both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def connect(harness):
    clients = []

    async def one(address=None):
        to = {"host": "127.0.0.1", "port": harness.port}
        if address is not None:
            source = socket.create_connection(tuple(to.values()), source_address=(address, 0))
            to = {"sock": source}
        client = Client(*await asyncio.open_connection(**to))
        clients.append(client)
        return client

    yield one
    for client in clients:
        client.writer.transport.abort()

"""Life cycle of the model server: bind, load, serve, drain.

It listens before it loads, so that a status call can report LOADING. Its front ends are `rest` and,
if configured, `grpc_server`; they share the models and the compute threads.
"""

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roma.config.workers import UNIX
from roma.domain.addresses import authority
from roma.serving import oip_grpc, predict_grpc
from roma.serving.errors import ListenError, ModelDirectoryError
from roma.serving.models import Models, Source
from roma.serving.rest import RestServer
from roma.serving.workers import ComputeThreads
from roma.telemetry.exhaustion import report_exhaustion
from roma.telemetry.tasks import stop_signal
from roma.tensors import frameworks

if TYPE_CHECKING:
    from roma.serving.grpc_server import GrpcServer


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one model server: models, listeners, threads and limits."""

    models: Mapping[str, Path]
    """Base folders with numbered versions, by model name."""
    host: str = "127.0.0.1"
    port: int = 8501
    """Port of REST, by default TensorFlow Serving's. 0 takes a free one."""
    socket: Path | None = None
    """Unix socket for REST, which then has no port; users with write access may call."""
    grpc_port: int | None = None
    """Port of the gRPC protocols, which are off without a port or a socket. 0 takes a free one."""
    grpc_socket: Path | None = None
    """Unix socket of the gRPC protocols; users with write access may call."""
    allow_reload: bool = False
    """True if clients may load other models (HandleReloadConfigRequest), from any folder."""
    intra_op: int = 1
    """Threads inside one operation."""
    inter_op: int = 1
    """Requests computed at once."""
    max_body_bytes: int = 64 * 2**20
    """Largest request: a longer body gets 413, a longer gRPC message RESOURCE_EXHAUSTED."""
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Versions by label, by model name; a version with a label is always served."""
    drain_limit: float = 10.0
    """Seconds for requests in flight to end at shutdown."""


async def run_model_server(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then answer requests in flight and return.

    It owns the process: it handles its signals, and exits with status 0 if a model still computes
    when the drain limit ends. Raises ModelDirectoryError, ListenError or ModelLoadError.
    """
    server = ModelServer(settings)
    # One descriptor per connection, and the usual soft limit is 1024: without one left neither a
    # module nor a model can be loaded.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    report_exhaustion(asyncio.get_running_loop())
    stopped = stop_signal()
    try:
        await server.start()
        stopping = asyncio.ensure_future(stopped.wait())
        either: set[asyncio.Future[Any]] = {stopping, server.loading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if server.loading.done():
            server.loading.result()
            sys.stderr.write(f"{server.ready_line()}\n")
            sys.stderr.flush()
            await stopping
        else:
            stopping.cancel()
    finally:
        is_computing = await server.stop()
    if is_computing:
        # At exit Python would wait for its threads, and nothing can interrupt TensorFlow.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


class ModelServer:
    """A model server in this process; the constructor raises ModelDirectoryError."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        for name in settings.labels.keys() - settings.models.keys():
            raise ModelDirectoryError(f"labels of {name}: there is no such model")
        sources = {n: Source(p, settings.labels.get(n, {})) for n, p in settings.models.items()}
        self._models = Models(sources, may_follow=settings.allow_reload)
        self._workers = ComputeThreads(settings.inter_op, "infer")
        # Answers status and metadata calls while every compute thread is busy.
        self._clerk = ComputeThreads(1, "describe")
        self._loader = ComputeThreads(1, "load")
        self._rest = RestServer(self._models, self._workers, settings.max_body_bytes)
        self._grpc: GrpcServer | None = None
        self.loading: asyncio.Future[None]
        """Future set by `start`; done when every model is loaded or has failed."""

    def __repr__(self) -> str:
        return f"<ModelServer {self.url}: {', '.join(self._models.available()) or 'loading'}>"

    @property
    def url(self) -> str:
        """The server's REST address, `http://host:port` or `unix:///path`."""
        if self._settings.socket is not None:
            return f"{UNIX}{self._settings.socket.absolute()}"
        host, port = self._rest.address or (self._settings.host, self._settings.port)
        return f"http://{authority(host, port)}"

    @property
    def grpc_address(self) -> str | None:
        """The address of the gRPC protocols, `host:port`; None without a port."""
        port = None if self._grpc is None else self._grpc.port
        return None if port is None else authority(self._settings.host, port)

    def ready_line(self) -> str:
        """Return the line that reports readiness to the operator."""
        where = [self.url]
        if self.grpc_address is not None:
            where.append(f"grpc://{self.grpc_address}")
        if self._settings.grpc_socket is not None:
            where.append(f"grpc+{UNIX}{self._settings.grpc_socket.absolute()}")
        models = ", ".join(self._models.available())
        return f"roma serve-model: ready on {' and '.join(where)}: {models}"

    async def start(self) -> None:
        """Listen and start loading; raises ListenError, or LaunchError if PyTorch is imported."""
        frameworks.claim("tensorflow")
        settings = self._settings
        where = settings.socket or (settings.host, settings.port)
        await self._rest.start(where, settings.drain_limit)
        if settings.grpc_port is not None or settings.grpc_socket is not None:
            try:
                self._grpc = await self._start_grpc()
            except ListenError:
                await self._rest.stop()
                raise
        self.loading = asyncio.ensure_future(self._loader.run(self._load))

    async def stop(self) -> bool:
        """Stop listening, let requests in flight end within the limit, free the models.

        Returns whether a thread still computes; its model is then not freed.
        """
        self._models.drain()
        # Both front ends close at the same time, so that each has the whole drain limit. REST's
        # closes in this very step: aiohttp never answers a connection accepted between the two.
        limit = self._settings.drain_limit
        closing = asyncio.ensure_future(self._grpc.stop(limit)) if self._grpc else None
        await self._rest.stop()
        if closing is not None:
            await closing
        if hasattr(self, "loading"):
            self.loading.cancel()
            await asyncio.wait({self.loading})
        # Stop all of them, whatever the first one returns.
        computing = [pool.stop() for pool in (self._loader, self._workers, self._clerk)]
        is_computing = any(computing)
        if not is_computing:
            self._models.close()
        return is_computing

    async def _start_grpc(self) -> "GrpcServer":
        # Imported here because REST alone does not need it.
        from roma.serving.grpc_server import GrpcServer  # noqa: PLC0415

        settings = self._settings
        methods = (*predict_grpc.METHODS, *oip_grpc.METHODS)
        server = GrpcServer(
            self._models,
            methods,
            workers=self._workers,
            clerk=self._clerk,
            loader=self._loader,
            max_bytes=settings.max_body_bytes,
        )
        await server.start(settings.host, settings.grpc_port, settings.grpc_socket)
        return server

    def _load(self) -> None:
        if self._grpc is not None:
            predict_grpc.load_messages()
            oip_grpc.load_messages()
        self._models.load(self._settings.intra_op)

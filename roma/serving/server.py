"""The socket of the model server, and its life: bind, load, serve, drain.

It listens before it loads, so that a status call can say LOADING. The event loop only moves
bytes: JSON and tensors are the workers' business.
"""

import asyncio
import logging
import os
import signal
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from roma.serving import api, service
from roma.serving.errors import BodyTooLarge, Code, ListenError, RequestError
from roma.serving.models import Models
from roma.serving.workers import Workers

BODY_TIMEOUT = 60.0
"""Seconds a client may take to send a body once its headers are here."""

KEEP_ALIVE = 3600.0
"""Seconds: connections belong to a dispatcher's pool, which closes them itself."""

BACKLOG = 1024
"""Connections that may wait to be accepted; a pool opens many at once."""

_JSON = {"Content-Type": "application/json"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What one model server serves, where, and with how many threads."""

    models: Mapping[str, Path]
    """Base folders, holding numbered versions, by model name."""
    host: str = "127.0.0.1"
    port: int = 8501
    """TensorFlow Serving's REST port. 0 takes a free one."""
    intra_op: int = 1
    """Threads inside one operation."""
    inter_op: int = 1
    """Requests computed at once."""
    max_body_bytes: int = 64 * 2**20
    """A longer request body is refused with 413."""
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Versions by label by model name; a version that a label names is served too."""
    drain_limit: float = 10.0
    """Seconds that requests in flight get to end when the server is stopped."""


async def run_model_server(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then answer what is in flight and return.

    It owns the process: it handles its signals, and ends it with status 0 if a model still
    computes when the time to drain is over. Raises ModelDirectoryError, ListenError or
    ModelLoadError.
    """
    server = ModelServer(settings)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
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
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if is_computing:
        # Python would wait for its threads before it ends, and nothing can interrupt TensorFlow.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


class ModelServer:
    """A model server in this process; raises ModelDirectoryError when made."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._models = Models(settings.models, settings.labels)
        self._workers = Workers(settings.inter_op, "infer")
        self._loader = Workers(1, "load")
        self._runner: web.ServerRunner | None = None
        self._draining = False
        self.loading: asyncio.Future[None]
        """Done when every model is loaded or has failed; set by `start`."""

    def __repr__(self) -> str:
        return f"<ModelServer {self.url}: {', '.join(self._models.available()) or 'loading'}>"

    @property
    def url(self) -> str:
        """The server's address, `http://host:port`."""
        addresses = self._runner.addresses if self._runner else []
        host, port = addresses[0][:2] if addresses else (self._settings.host, self._settings.port)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def ready_line(self) -> str:
        """Return what to tell the operator once it is ready."""
        return f"roma serve-model: ready on {self.url}: {', '.join(self._models.available())}"

    async def start(self) -> None:
        """Listen, and begin to load; raises ListenError."""
        settings = self._settings
        server = web.Server(
            self._handle,
            request_factory=self._request,
            # A client that goes away takes its waiting request with it.
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE,
            access_log=None,
            auto_decompress=False,  # a worker does it: `inflate`
        )
        runner = web.ServerRunner(server, shutdown_timeout=settings.drain_limit)
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG).start()
        except OSError as error:
            await runner.cleanup()
            raise ListenError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"
            ) from error
        self._runner = runner
        self.loading = asyncio.ensure_future(self._loader.run(self._models.load, settings.intra_op))

    async def stop(self) -> bool:
        """Stop listening, let requests in flight end within the limit, free the models.

        Returns whether a thread still computes; its model is then not freed.
        """
        self._draining = True
        if self._runner is not None:
            await self._runner.cleanup()
            self.loading.cancel()
            await asyncio.wait({self.loading})
        # Both are stopped, whatever the first one says.
        is_computing = any([self._loader.stop(), self._workers.stop()])
        if not is_computing:
            self._models.close()
        return is_computing

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        try:
            call = api.parse(request.method, request.raw_path)
            if call.action.is_inference:
                body = await self._read(request)
                is_gzip = request.headers.get("Content-Encoding", "").lower() == "gzip"
                response = _ok(await self._workers.run(self._answer, call, body, is_gzip=is_gzip))
            else:
                response = _ok(service.describe(self._models, call))
        except RequestError as error:
            response = _error(api.HTTP_STATUS[error.code], str(error))
        except (web.HTTPRequestEntityTooLarge, BodyTooLarge):
            limit = self._settings.max_body_bytes
            response = _error(413, f"Request body is larger than {limit} bytes")
        except Exception:
            _log.exception("%s %s", request.method, request.raw_path)
            response = _error(api.HTTP_STATUS[Code.INTERNAL], "Internal error")
        if self._draining:
            response.force_close()
        return response

    async def _read(self, request: web.BaseRequest) -> bytes:
        limit = self._settings.max_body_bytes
        if (request.content_length or 0) > limit:
            raise BodyTooLarge
        if request.headers.get("Expect", "").lower() == "100-continue":
            # curl waits a second for this before it sends a large body.
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                return await request.read()
        except web.RequestPayloadError as error:
            raise RequestError(f"Malformed request body: {error}") from error
        except TimeoutError:
            late = f"request body took longer than {BODY_TIMEOUT:g} s"
            raise RequestError(late, Code.DEADLINE_EXCEEDED) from None

    def _answer(self, call: api.Call, body: bytes, *, is_gzip: bool) -> bytes:
        if is_gzip:
            body = inflate(body, self._settings.max_body_bytes)
        return service.answer(self._models, call, body)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
        # aiohttp's own limit is 1 MiB.
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self._settings.max_body_bytes,
        )


def inflate(body: bytes, limit: int) -> bytes:
    """Return what a gzip body holds; raises RequestError, or BodyTooLarge beyond `limit` bytes.

    Like TensorFlow Serving it knows no other encoding: any other body is read as it is.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16 asks for gzip's header
    try:
        plain = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"Malformed gzip body: {error}") from error
    if len(plain) > limit:
        raise BodyTooLarge
    if not reader.eof:
        raise RequestError("Malformed gzip body: it ends too early")
    return plain


def _ok(body: bytes) -> web.Response:
    return web.Response(body=body, headers=_JSON)


def _error(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=api.error_body(message), headers=_JSON)

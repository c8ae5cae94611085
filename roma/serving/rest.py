"""HTTP front end of the model server: bodies in, answers out, deadlines, draining.

The event loop only moves bytes; compute threads handle JSON and tensors. A request's path
determines its protocol.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from roma.config.sockets import SocketFile, refuse_taken
from roma.domain.addresses import authority
from roma.serving import api, deadline, oip_rest, service
from roma.serving.errors import BodyTooLarge, Code, ListenError, RequestError
from roma.serving.models import Models
from roma.serving.route import RestResponse, RestRoute
from roma.serving.workers import ComputeThreads
from roma.telemetry.reachability import reason
from roma.tensors.inflate import inflate, is_compressed

BODY_TIMEOUT = 60.0
"""Most seconds a client may take to send a body after its headers."""

KEEP_ALIVE = 3600.0
"""Keep-alive timeout in seconds: connections belong to a dispatcher's pool, which closes them."""

BACKLOG = 1024
"""Most connections that wait to be accepted; a pool opens many at once."""

_log = logging.getLogger(__name__)


class RestServer:
    """REST server of the protocols over `models`; `workers` compute."""

    def __init__(self, models: Models, workers: ComputeThreads, max_body_bytes: int) -> None:
        self._models = models
        self._workers = workers
        self._max_body_bytes = max_body_bytes
        self._runner: web.ServerRunner | None = None
        self._socket: SocketFile | None = None
        self._draining = False

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it listens on; None before `start` and on a Unix socket."""
        addresses = self._runner.addresses if self._runner and self._socket is None else []
        return (addresses[0][0], addresses[0][1]) if addresses else None

    async def start(self, where: tuple[str, int] | Path, drain_limit: float) -> None:
        """Listen on a host and port, 0 for a free one, or a Unix socket; raises ListenError."""
        server = web.Server(
            self._handle,
            request_factory=self._request,
            # A waiting request is cancelled when its client disconnects.
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE,
            access_log=None,
            auto_decompress=False,  # a compute thread does it: `inflate`
        )
        runner = web.ServerRunner(server, shutdown_timeout=drain_limit)
        await runner.setup()
        try:
            await self._site(runner, where).start()
        except (OSError, UnicodeError) as error:  # the latter: no name of a host
            await runner.cleanup()
            place = where if isinstance(where, Path) else authority(*where)
            raise ListenError(f"cannot listen on {place}: {reason(error)}") from error
        self._runner = runner
        if isinstance(where, Path):
            self._socket = SocketFile(where)

    def _site(self, runner: web.ServerRunner, where: tuple[str, int] | Path) -> web.BaseSite:
        if not isinstance(where, Path):
            return web.TCPSite(runner, *where, backlog=BACKLOG)
        refuse_taken(where)
        return web.UnixSite(runner, where, backlog=BACKLOG)

    async def stop(self) -> None:
        """Stop listening; give requests in flight the drain limit to end."""
        self._draining = True
        if self._socket is not None:
            self._socket.remove()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        began = asyncio.get_running_loop().time()
        try:
            protocol = oip_rest if oip_rest.owns(request.raw_path) else service
            route = protocol.route(request.method, request.raw_path)
            answer = await self._follow(route, request, began)
        except RequestError as error:
            answer = RestResponse(api.error_body(str(error)), api.HTTP_STATUS[error.code])
        except (web.HTTPRequestEntityTooLarge, BodyTooLarge):
            text = f"Request body is larger than {self._max_body_bytes} bytes"
            answer = RestResponse(api.error_body(text), 413)
        except Exception:
            _log.exception("%s %s", request.method, request.raw_path)
            answer = RestResponse(api.error_body("Internal error"), api.HTTP_STATUS[Code.INTERNAL])
        response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        if self._draining:
            response.force_close()
        return response

    async def _follow(
        self, route: RestRoute, request: web.BaseRequest, began: float
    ) -> RestResponse:
        if not route.computes:
            return route.answer(self._models, b"", request.headers)
        seconds = deadline.seconds_left(request.headers)
        body = await self._read(request)
        if seconds is not None:
            seconds += began - asyncio.get_running_loop().time()
        return await self._workers.run_within(seconds, self._answer, route, body, request.headers)

    async def _read(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > self._max_body_bytes:
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

    def _answer(self, route: RestRoute, body: bytes, headers: Mapping[str, str]) -> RestResponse:
        if is_compressed(headers.get("Content-Encoding")):
            body = inflate(body, self._max_body_bytes)
        return route.answer(self._models, body, headers)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
        # aiohttp's own limit is 1 MiB.
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self._max_body_bytes,
        )

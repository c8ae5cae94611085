"""The inference endpoint as an aiohttp application, to mount in a program of one's own.

It answers what the HTTP server of `dispatcher.live.http` answers, with the same handler, at about a
third of its speed: aiohttp parses and frames the messages, and the program's middlewares see them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from dispatcher.live import app as dispatcher_app
from dispatcher.live.http import head_checks, routes
from dispatcher.live.http.handler import AwaitedAnswer, Pending
from dispatcher.live.http.messages import Response
from dispatcher.live.http.request import (
    NAMES,
    OPTION_HEADERS,
    WANTED,
    Body,
    Head,
    HttpRequest,
    decoded,
)
from dispatcher.live.http.responses import error
from dispatcher.live.http.server import Server
from dispatcher.live.program import ProgramStep
from roma.config import schema
from roma.config.schema import Config
from roma.domain.errors import ConfigError
from roma.security.handshake import peer_of
from roma.security.tls import certificate_name

log = logging.getLogger(__name__)

CHECK_EVERY: Final = 0.25
"""Seconds between two looks for clients that have gone: unless it is told to (`web.run_app(…,
handler_cancellation=True)`), aiohttp does not tell a handler."""

_TAIL: Final = "/{tail:.*}"
_GZIP: Final = b"\x1f\x8b"


def aiohttp_app(config: Config | Path | str, *, insecure: bool = False) -> web.Application:
    """Return the endpoint of a deployment, given its roma.yaml or the path of that.

    Serve it as it is, or mount it: `app.add_subapp("/inference", aiohttp_app("roma.yaml"))`. It
    starts and stops with the application. Unlike `roma dispatcher` it does not open
    `gateway.port`, but the other ports of the file, as safely (`insecure`: see there). Models are
    not reloaded; HTTP's TLS, limits on connections and idle clients are the program's affair.

    Raises ConfigError: for a fault in the file, or if `gateway.processes` is not 1.
    """
    loaded = config if isinstance(config, Config) else schema.load(Path(config))
    if loaded.gateway.processes != 1:
        raise ConfigError(f"gateway.processes = {loaded.gateway.processes}: must be 1 in aiohttp")
    app = web.Application()
    app[RUNNING] = endpoint = Endpoint(loaded, insecure=insecure)
    app.router.add_route("*", _TAIL, endpoint.handle)
    app.cleanup_ctx.append(endpoint.running)
    app.on_shutdown.append(endpoint.on_shutdown)
    return app


class Endpoint:
    """A dispatcher behind an aiohttp handler."""

    def __init__(self, config: Config, *, insecure: bool) -> None:
        self._config = config
        self._insecure = insecure
        self.serving: dispatcher_app.Running | None = None
        self.stop = asyncio.Event()
        self._pending: dict[AwaitedAnswer, web.Request] = {}

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Run the dispatcher while the application runs."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        # A task of its own: aiohttp may start and stop an application in different ones.
        task = loop.create_task(self._run(ready))
        try:
            await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the program ends before it began
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.done():
            task.result()  # raises the reason
        checking = loop.create_task(self._drop_gone())
        yield
        checking.cancel()
        self.stop.set()
        await task

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with dispatcher_app.running(
                self._config, insecure=self._insecure, listens=False
            ) as self.serving:
                ready.set_result(None)
                await self.stop.wait()
        except Exception:
            if not ready.done():
                raise
            log.exception("the dispatcher ended: requests are refused from now on")
        finally:
            self.serving = None

    async def on_shutdown(self, _: web.Application) -> None:
        """Tell load balancers that the application stops."""
        if self.serving is not None:
            self.serving.service.program.step(ProgramStep.STOP)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        serving = self.serving
        if serving is None:
            return _response(error(503, "the dispatcher is not running", retry_after=1.0), b"")
        server, head = serving.server, _head(request)
        asked = HttpRequest(_peer(request), _certificate(request), head)
        objection = head_checks.host_objection(head, server.origins)
        objection = objection or head_checks.origin_objection(head, server.origins)
        if objection is not None:
            return _response(server.handler.error(asked, *objection), head.cors)
        try:
            refusal = server.handler.check_before_body(asked)
            if refusal is None:
                refusal = await self._read(request, asked, server)
            if refusal is not None:
                return _response(refusal, head.cors)
            return _response(await self._answer(request, asked, server), head.cors)
        finally:
            server.buffered -= len(asked.body)
            asked.end()

    async def _read(
        self, request: web.Request, asked: HttpRequest, server: Server
    ) -> Response | None:
        """Read the body within its bounds; return the answer to one that exceeds them."""
        body, bounds, handler = Body(), server.bounds, server.handler
        content, started = request.content, asyncio.get_running_loop().time()
        try:
            while not content.at_eof():
                if content.is_eof():  # all of it is here
                    body.add(content.read_nowait())
                else:
                    async with asyncio.timeout_at(started + bounds.body_timeout):
                        body.add(await content.readany())
                if len(body) > bounds.max_body_bytes:
                    return handler.error(asked, *bounds.large_body())
                if not server.make_room(len(body)):
                    return handler.error(asked, 503, server.no_room(asked.peer, len(body)))
        except TimeoutError:
            message = f"request body took longer than {bounds.body_timeout:g} s"
            return handler.error(asked, 408, message)
        except web.RequestPayloadError as fault:  # compressed, and not as it says
            return handler.error(asked, 400, f"Malformed request: {fault}")
        asked.body = body.take()
        server.buffered += len(asked.body)
        coding = asked.head.headers.get(b"content-encoding")
        if coding is not None and not (coding == b"gzip" and asked.body.startswith(_GZIP)):
            del asked.head.headers[b"content-encoding"]  # aiohttp has decoded it
        return None

    async def _answer(self, request: web.Request, asked: HttpRequest, server: Server) -> Response:
        awaited = AwaitedAnswer(asyncio.get_running_loop())
        awaited.peer, awaited.certificate = asked.peer, asked.certificate
        pending: Pending | None = server.handler.handle(asked, awaited)
        self._pending[awaited] = request
        try:
            return await awaited.answer
        except ConnectionAbortedError:  # a bug; the log has it
            return error(500, "Internal error", close=True)
        except asyncio.CancelledError:
            if pending is not None:  # the client has gone
                pending.cancel()
            raise
        finally:
            del self._pending[awaited]

    async def _drop_gone(self) -> None:
        """Give up the requests whose clients have gone."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            for awaited, request in list(self._pending.items()):
                if request.transport is None or request.transport.is_closing():
                    awaited.answer.cancel()


RUNNING: Final = web.AppKey("running", Endpoint)
"""Key of an application under which its endpoint is found."""


def _head(request: web.Request) -> Head:
    """Return the request's head; its target begins where the endpoint is mounted."""
    head, resource = Head(), request.match_info.route.resource
    assert resource is not None
    prefix = resource.canonical.removesuffix("/{tail}")
    head.method = request.method
    head.target = decoded(request.raw_path[len(prefix) :].encode("utf-8", "surrogateescape"))
    head.version = f"{request.version.major}.{request.version.minor}"
    headers = head.headers
    for name, value in request.raw_headers:
        known = NAMES.get(name) or name.lower()
        if known in WANTED:
            headers[known] = headers[known] + b"," + value if known in headers else value
    head.route = routes.parse(head.method, head.target)
    head.has_options = not OPTION_HEADERS.isdisjoint(headers)
    return head


def _peer(request: web.Request) -> str:
    return "" if request.transport is None else peer_of(request.transport)


def _certificate(request: web.Request) -> str | None:
    transport = request.transport
    tls = None if transport is None else transport.get_extra_info("ssl_object")
    return None if tls is None else certificate_name(tls.getpeercert())


def _response(response: Response, cors: bytes) -> web.Response:
    """Return an answer as aiohttp writes it."""
    headers = CIMultiDict({"Content-Type": response.content_type})
    if response.content_encoding is not None:
        headers["Content-Encoding"] = response.content_encoding
    for line in (response.more + cors.decode("latin-1")).splitlines():
        name, _, value = line.partition(": ")
        headers.add(name, value)
    made = web.Response(status=response.status, body=response.body, headers=headers)
    if response.close:
        made.force_close()
    return made

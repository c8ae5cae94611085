"""The inference endpoint as an aiohttp application, to mount in a program of one's own.

It answers what the HTTP server of `dispatcher.live.http` answers, with the same handler, at a
fraction of its speed (`python -m bench gateway`): aiohttp parses and frames the messages, and the
program's middlewares see them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aiohttp import StreamReader, web
from multidict import CIMultiDict

from dispatcher.live import app as dispatcher_app
from dispatcher.live.http import head_checks, routes
from dispatcher.live.http.body import Body
from dispatcher.live.http.handler import AwaitedAnswer, Pending
from dispatcher.live.http.messages import Response
from dispatcher.live.http.request import NAMES, OPTION_HEADERS, WANTED, Head, HttpRequest, decoded
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
_DECODED: Final = frozenset({b"br", b"deflate", b"gzip", b"zstd"})
"""Content codings that aiohttp decodes, unless it is told not to."""

_GZIP: Final = b"\x1f\x8b"
"""First bytes of a body that it did not decode."""


def aiohttp_app(config: Config | Path | str, *, insecure: bool = False) -> web.Application:
    """Return the endpoint of a deployment, given its roma.yaml or the path of that.

    Serve it as it is, or mount it: `app.add_subapp("/inference", aiohttp_app("roma.yaml"))`. It
    starts and stops with the application. Unlike `roma dispatcher` it does not open
    `gateway.port`, but the other ports of the file (`insecure`: without authentication, too). Who
    reaches the endpoint is the program's affair: without `gateway.keys` or `gateway.oidc` it should
    stay on loopback or authenticate. Models are not reloaded.

    Raises ConfigError: for a fault in the file, or if `gateway.processes` is not 1.
    """
    loaded = config if isinstance(config, Config) else schema.load(Path(config))
    if loaded.gateway.processes != 1:
        raise ConfigError(f"gateway.processes = {loaded.gateway.processes}: must be 1 in aiohttp")
    app = web.Application()
    app[ENDPOINT] = endpoint = Endpoint(loaded, insecure=insecure)
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
        self.stop.clear()  # an application may be started again
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
                if self.serving.service.is_open:
                    log.warning(
                        "neither gateway.keys nor gateway.oidc is set: who reaches this program "
                        "may call every model"
                    )
                ready.set_result(None)
                await self.stop.wait()
        except Exception:  # a bug in the dispatcher must not end the program around it
            if not ready.done():
                raise
            log.exception("the dispatcher ended: requests are refused from now on")
        finally:
            self.serving = None
            for awaited in list(self._pending):
                awaited.abort()

    async def on_shutdown(self, _: web.Application) -> None:
        """Tell load balancers that the application stops."""
        if self.serving is not None and not self.serving.service.program.is_ending:
            self.serving.service.program.step(ProgramStep.STOP)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        if self.serving is None:
            return _response(_not_running(), b"")
        server, head = self.serving.server, _head(request)
        exchange = _Exchange(request, HttpRequest(_peer(request), _certificate(request), head))
        try:
            return _response(await self._answer(exchange, server), head.cors)
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug: this client gets an answer, the others do not notice
            log.exception("request %s %s", head.method, head.target)
            return _response(error(500, "Internal error", close=True), head.cors)
        finally:
            server.buffered -= exchange.held
            exchange.asked.end()

    async def _answer(self, exchange: "_Exchange", server: Server) -> Response:
        asked, handler = exchange.asked, server.handler
        objection = head_checks.host_objection(asked.head, server.origins)
        objection = objection or head_checks.origin_objection(asked.head, server.origins)
        if objection is not None:
            return handler.error(asked, *objection)
        refusal = handler.check_before_body(asked) or await _read(exchange, server)
        if refusal is not None:
            return refusal
        awaited = AwaitedAnswer(asyncio.get_running_loop())
        awaited.peer, awaited.certificate = asked.peer, asked.certificate
        pending: Pending | None = handler.handle(asked, awaited)
        self._pending[awaited] = exchange.request
        try:
            return await awaited.answer
        except ConnectionAbortedError:  # the log has the reason
            if self.serving is None:
                return _not_running()
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


class _Exchange:
    """A request of aiohttp's, the gateway's version of it, and the bytes that it holds."""

    __slots__ = ("asked", "held", "request")

    def __init__(self, request: web.Request, asked: HttpRequest) -> None:
        self.request = request
        self.asked = asked
        self.held = 0


ENDPOINT: Final = web.AppKey("endpoint", Endpoint)
"""Key of an application under which its endpoint is found."""


async def _read(  # noqa: PLR0911 - one for each bound
    exchange: _Exchange, server: Server
) -> Response | None:
    """Read the body within its bounds; return the answer to one that exceeds them."""
    asked, content = exchange.asked, exchange.request.content
    body, bounds, handler = Body(), server.bounds, server.handler
    if (exchange.request.content_length or 0) > bounds.max_body_bytes:
        return handler.error(asked, *bounds.large_body())
    ends = asyncio.get_running_loop().time() + bounds.body_timeout
    try:
        # Of a body that a middleware has read nothing is left; aiohttp keeps it in the request.
        kept = await exchange.request.read() if content.at_eof() else b""
        while kept or not content.at_eof():
            part, kept = kept or await _part(content, ends), b""
            body.add(part)
            exchange.held += len(part)
            server.buffered += len(part)
            if len(body) > bounds.max_body_bytes:
                return handler.error(asked, *bounds.large_body())
            if server.buffered > bounds.buffered_bytes and not server.make_room(0):
                return handler.error(asked, 503, server.no_room(asked.peer))
    except TimeoutError:
        message = f"request body took longer than {bounds.body_timeout:g} s"
        return handler.error(asked, 408, message)
    except web.RequestPayloadError as fault:  # compressed, and not as it says
        return handler.error(asked, 400, f"Malformed request: {fault}")
    except OSError:  # it hung up, has no route any more, or broke TLS
        return handler.error(asked, 400, "the client is gone")
    asked.body = body.take()
    coding = asked.head.headers.get(b"content-encoding", b"").lower()
    if coding in _DECODED and not (coding == b"gzip" and asked.body.startswith(_GZIP)):
        del asked.head.headers[b"content-encoding"]
    return None


async def _part(content: StreamReader, ends: float) -> bytes:
    """Return the next part of a body that has not ended; raise TimeoutError at `ends`."""
    if content.is_eof():  # all of it is here
        return content.read_nowait()
    async with asyncio.timeout_at(ends):
        return await content.readany()


def _not_running() -> Response:
    return error(503, "the dispatcher is not running", retry_after=1.0)


def _head(request: web.Request) -> Head:
    """Return the request's head; its target begins where the endpoint is mounted."""
    head, resource = Head(), request.match_info.route.resource
    assert resource is not None
    prefix = resource.canonical.removesuffix("/{tail}")
    head.method = request.method
    path = routes.origin_form(request.raw_path)[len(prefix) :]
    head.target = decoded(path.encode("utf-8", "surrogateescape"))
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
    for line in (response.more + cors.decode("latin-1")).split("\r\n"):
        name, colon, value = line.partition(": ")
        if colon:
            headers.add(name, value)
    made = web.Response(status=response.status, body=response.body, headers=headers)
    if response.close:
        made.force_close()
    return made

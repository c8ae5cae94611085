"""The clients' door: TensorFlow Serving's REST API on aiohttp's low-level server.

Bodies are opaque: row and columnar formats, base64 and compression pass untouched in both
directions. Errors have TensorFlow Serving's shape, `{"error": "…"}`, and its status codes, plus

    413 body too large          429 queue full or predicted late, with Retry-After
    502 executable failed       503 no executable, with Retry-After
    408 body came too slowly    504 deadline passed in the queue, or no answer in time

An X-Request-Id comes back on every answer. A request that brings none and leaves no trace goes its
way without a look at either.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_never, cast

import orjson
from aiohttp import hdrs, web

from dispatcher.executors import RECOVERY
from dispatcher.live import passthrough, routes
from dispatcher.live.backend import Pool, Response
from dispatcher.live.context import REQUEST_ID, Context, Tracer, carried
from dispatcher.live.driver import Call, Driver, Outcome
from dispatcher.live.journal import Journal
from roma import units
from roma.errors import BackendError, BackendTimeout
from roma.events import Fail, Reason, Reject

BODY_TIMEOUT = 30.0
"""Seconds a client may take to send a body once its headers are here."""

DRAIN_RETRY = 5.0
"""Seconds after which a client may try again while the gateway restarts."""

_REJECTED = {
    Reason.QUEUE_FULL: 429,
    Reason.PREDICTED_LATE: 429,
    Reason.DEADLINE: 504,
    Reason.NO_EXECUTABLE: 503,
}


class _Refused(Exception):
    """A body that will not be read."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gateway:
    """Turns HTTP requests into calls and outcomes into HTTP responses."""

    def __init__(
        self,
        driver: Driver,
        pools: dict[str, Pool],
        journal: Journal,
        tracer: Tracer | None = None,
        *,
        max_body_bytes: int,
        backend_timeout: float,
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._tracer = tracer
        self._pools = pools
        self._max_body_bytes = max_body_bytes
        self._backend_timeout = backend_timeout
        self.draining = False
        self.closing: set[str] = set()
        """Models that go: new clients are told that there is no such model."""
        self.joining: set[str] = set()
        """Models that came while we run: until they are loaded nobody is unready for them."""
        self.http = self._server()

    def _server(self) -> web.Server:
        """Return the aiohttp server; a client that disconnects cancels its handler."""

        def request_factory(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
            return web.BaseRequest(
                message,
                payload,
                protocol,
                writer,
                task,
                protocol._loop,
                client_max_size=self._max_body_bytes,
            )

        return web.Server(
            self.handle,
            request_factory=request_factory,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
        )

    def handle(self, request: web.BaseRequest) -> Coroutine[Any, Any, web.StreamResponse]:
        """Answer one HTTP request."""
        context = carried(request.headers)
        if context is None and self._tracer is None:
            return self._respond(request)
        return self._respond_within(request, context or Context())

    async def _respond_within(
        self, request: web.BaseRequest, context: Context
    ) -> web.StreamResponse:
        """Answer a request that brings a context along, or shall be traced."""
        route = routes.parse(request.method, request.raw_path)
        if self._tracer is not None and route is not None and route.is_inference:
            context.trace = self._tracer.begin(context, route, self._driver.clock())
        status = None
        try:
            response = await self._respond(request, context)
            status = response.status
        except asyncio.CancelledError:
            raise
        except Exception:
            status = 500  # as aiohttp will say
            raise
        finally:
            if context.trace is not None:
                context.trace.end(status, self._driver.clock())
        if context.request_id is not None:
            if isinstance(response, passthrough.Passthrough):
                response.more = f"{REQUEST_ID}: {context.request_id}\r\n"
            else:
                response.headers[REQUEST_ID] = context.request_id
        return response

    async def _respond(
        self, request: web.BaseRequest, context: Context | None = None
    ) -> web.StreamResponse:
        route = routes.parse(request.method, request.raw_path)
        if route is None:
            return self._other(request)
        if not self._serves(route.model):
            return _error(404, _missing(route))
        if not route.is_inference:
            return await self._look_up(request, route, context)
        if self.draining:
            return _error(503, "draining", retry_after=DRAIN_RETRY, close=True)
        content = request.content
        if content.is_eof() and content.total_bytes <= self._max_body_bytes:
            body = content.read_nowait()  # the common case: all here already, no timer
        else:
            try:
                body = await self._body(request)
                if not self._serves(route.model):  # it went while the body came
                    raise _Refused(404, _missing(route))
            except _Refused as refused:
                return _error(refused.status, str(refused), close=True)
        headers = request.headers
        call = self._driver.submit(
            route.model,
            route.path,
            body,
            headers.get(hdrs.CONTENT_TYPE, "application/json"),
            headers.get(hdrs.CONTENT_ENCODING),
            context=context,
        )
        try:
            outcome = await call.future
        except asyncio.CancelledError:
            self._driver.cancel(call)
            self._journal.on_cancelled(call, self._driver.clock() - call.arrived)
            raise
        # The usual answer, nobody asks about.
        if (
            context is not None
            or outcome.__class__ is not Response
            or outcome.status >= 400
            or self._journal.writes_all
        ):
            self._note(call, outcome)
        return _answer(outcome, request, close=self.draining)

    def _note(self, call: Call, outcome: Outcome) -> None:
        response_time = self._driver.clock() - call.arrived
        self._journal.on_outcome(call, outcome, response_time)
        if call.context is not None and call.context.trace is not None:
            call.context.trace.on_outcome(outcome, response_time, call.executor)

    def _serves(self, model: str) -> bool:
        return model in self._driver.core.queues and model not in self.closing

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Read a body that is still on its way, within limits of size and time."""
        limit = self._max_body_bytes
        try:
            if (request.content_length or 0) > limit:
                raise web.HTTPRequestEntityTooLarge(limit)
            if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(BODY_TIMEOUT):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise _Refused(413, f"request body is larger than {limit} bytes") from None
        except TimeoutError:
            raise _Refused(408, f"request body took longer than {BODY_TIMEOUT:g} s") from None
        except web.RequestPayloadError as error:
            raise _Refused(400, f"Malformed request body: {error}") from error

    async def _look_up(
        self, request: web.BaseRequest, route: routes.Route, context: Context | None
    ) -> web.StreamResponse:
        """Pass a status or metadata request to any live executable of the model."""
        more = "" if context is None else context.lines
        failed = _error(503, f"no executable of model {route.model} is ready", retry_after=RECOVERY)
        for executor in list(self._driver.core.executors.of(route.model)):
            name = executor.spec.name
            pool = self._pools.get(name)
            if pool is None:  # it went while another one was asked
                continue
            try:
                response = await pool.fetch(
                    "GET", route.path, timeout=self._backend_timeout, more=more
                )
            except BackendTimeout as error:
                failed = _error(504, f"executable {name}: {error}")
            except BackendError as error:
                failed = _error(502, f"executable {name}: {error}")
            else:
                return _answer(response, request)
        return failed

    def _other(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        match path:
            case "/healthz":
                return web.Response(text="ok")
            case "/readyz":
                return self._ready()
            case _ if path.startswith("/v1/"):
                return _error(400, f"Malformed request: {request.method} {request.raw_path}")
            case _:
                return _error(404, f"Not found: {path}")

    def _ready(self) -> web.StreamResponse:
        core = self._driver.core
        missing = [model for model in core.queues if not core.executors.serve(model)]
        # A model that has answered has joined.
        self.joining = {m for m in missing if m in self.joining and not core.queues[m].completed}
        missing = [model for model in missing if model not in self.joining]
        if self.draining:
            return _error(503, "draining")
        if missing:
            return _error(503, f"no executable is ready for: {', '.join(missing)}")
        return web.Response(text="ready")


def _missing(route: routes.Route) -> str:
    if route.is_inference:
        return f"Servable not found for request: {route.servable}"
    return f"Could not find any versions of model {route.model}"


def _answer(
    outcome: Outcome, request: web.BaseRequest, *, close: bool = False
) -> web.StreamResponse:
    match outcome:
        case Response() if not close and passthrough.fits(outcome, request):
            # Has what the server asks of a response without being one.
            return cast(web.StreamResponse, passthrough.Passthrough(outcome))
        case Response(status, content_type, content_encoding, body):
            headers = {"Content-Type": content_type}
            if content_encoding:
                headers["Content-Encoding"] = content_encoding
            response = web.Response(status=status, body=body, headers=headers)
            if close:
                response.force_close()
            return response
        case Reject(_, reason, retry_after, detail):
            status = _REJECTED[reason]
            return _error(status, detail, retry_after=None if status == 504 else retry_after)
        case Fail(_, detail):
            return _error(502, detail)
        case _:
            assert_never(outcome)


def _error(
    status: int, message: str, *, retry_after: float | None = None, close: bool = False
) -> web.Response:
    response = web.Response(
        status=status, body=orjson.dumps({"error": message}), content_type="application/json"
    )
    if retry_after is not None:
        response.headers["Retry-After"] = str(units.retry_after_s(retry_after))
    if close:
        response.force_close()
    return response

"""The clients' door: what an HTTP request asks for, and what its outcome is in HTTP's words.

Bodies are opaque: row and columnar formats, base64, binary tensors and compression pass untouched
in both directions. Errors have the shape of TensorFlow Serving and of the Open Inference Protocol,
`{"error": "…"}`, and TensorFlow Serving's status codes, plus

    413 body too large          429 queue full or predicted late, with Retry-After
    502 executable failed       503 no executable, with Retry-After
    408 request came too slowly 504 deadline passed, or no answer in time

A client may name its own deadline (X-Request-Timeout-Ms). An X-Request-Id comes back on every
answer. A request that brings none and leaves no trace goes its way without a look at either.
"""

import asyncio
from typing import assert_never

import orjson

from dispatcher.executors import RECOVERY
from dispatcher.live import routes
from dispatcher.live.access import Access, Credentials, Denied
from dispatcher.live.backend import Message, Pool, Response
from dispatcher.live.context import REQUEST_ID, Context, Tracer, carried
from dispatcher.live.driver import Call, Driver, Outcome
from dispatcher.live.http.connection import Connection, Pending
from dispatcher.live.http.request import Request
from dispatcher.live.journal import Journal
from roma import units
from roma.errors import BackendError, BackendTimeout
from roma.events import Fail, Reason, Reject

DRAIN_RETRY = 5.0
"""Seconds after which a client may try again while the gateway restarts."""

_REJECTED = {
    Reason.QUEUE_FULL: 429,
    Reason.PREDICTED_LATE: 429,
    Reason.DEADLINE: 504,
    Reason.NO_EXECUTABLE: 503,
}

_MAX_TIMEOUT_DIGITS = 9
_OPEN = ("/healthz", "/readyz")
"""What a load balancer asks without a key."""

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class _Refused(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpCall(Call):
    """A call that an HTTP connection waits for."""

    __slots__ = ("_gateway", "connection")

    def __init__(
        self,
        gateway: "Gateway",
        connection: Connection,
        route: routes.Route,
        message: Message,
        *,
        deadline: float | None,
        context: Context | None,
    ) -> None:
        super().__init__(route.model, message, deadline=deadline, context=context)
        self._gateway = gateway
        self.connection = connection

    def on_outcome(self, outcome: Outcome) -> None:
        """Tell the client."""
        self._gateway.on_outcome(self, outcome)

    def cancel(self) -> None:
        """The client went away."""
        self._gateway.on_cancelled(self)


class Gateway:
    """Turns HTTP requests into calls and outcomes into HTTP responses; the server's `Handler`."""

    def __init__(
        self,
        driver: Driver,
        pools: dict[str, Pool],
        journal: Journal,
        access: Access,
        tracer: Tracer | None = None,
        *,
        backend_timeout: float,
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._access = None if access.is_open else access
        self._tracer = tracer
        self._pools = pools
        self._backend_timeout = backend_timeout
        self._looking_up: set[asyncio.Task[None]] = set()
        self.draining = False
        self.closing: set[str] = set()
        """Models that go: new clients are told that there is no such model."""
        self.joining: set[str] = set()
        """Models that came while we run: until they are loaded nobody is unready for them."""

    # The server's handler

    def screen(self, request: Request) -> Response | None:
        """Return an answer to a request whose body shall not be read, or None."""
        route = request.route = routes.parse(request.method, request.target)
        if self._access is not None and (route is not None or request.target not in _OPEN):
            # First of all: who may not call a model shall not learn whether it exists.
            try:
                request.grant = self._access.admit(
                    _credentials(request),
                    None if route is None else route.model,
                    self._driver.clock(),
                )
            except Denied as denied:
                return self._told(request, _denied(denied))
        if route is None:
            return None
        if not self._serves(route.model):
            return self._told(request, error(404, _missing(route)))
        if self.draining and route.is_inference:
            refusal = error(503, "draining", retry_after=DRAIN_RETRY, close=True)
            return self._told(request, refusal)
        return None

    def handle(self, request: Request, connection: Connection) -> Pending | None:
        """Take a request that is here."""
        route = request.route
        if route is None:
            connection.respond(self._told(request, self._other(request)))
            return None
        if not route.is_inference:
            return self._look_up(request, route, connection)
        headers, deadline = request.headers, None
        try:
            if not self._serves(route.model):  # it went while the body came
                raise _Refused(404, _missing(route))
            if b"x-request-timeout-ms" in headers:
                deadline = _timeout(request.header(b"x-request-timeout-ms") or "")
        except _Refused as refused:
            connection.respond(self._told(request, error(refused.status, str(refused))))
            return None
        context = self._context(request, route)
        message = _message(request, route)
        call = HttpCall(self, connection, route, message, deadline=deadline, context=context)
        self._driver.submit(call)
        return call

    def error(self, request: Request, status: int, message: str) -> Response:
        """Return an error that ends the connection."""
        return self._told(request, error(status, message, close=True))

    # Outcomes

    def on_outcome(self, call: HttpCall, outcome: Outcome) -> None:
        """Answer a call."""
        context = call.context
        # The usual answer, nobody asks about.
        if (
            outcome.__class__ is not Response
            or context is not None
            or outcome.status >= 400
            or self._journal.writes_all
        ):
            response_time = self._driver.clock() - call.arrived
            self._journal.on_outcome(call, outcome, response_time)
            if context is not None and context.trace is not None:
                context.trace.on_outcome(outcome, response_time, call.executor)
            outcome = _answer(outcome)
            if context is not None:
                self._end(context, outcome)
        call.connection.respond(outcome)

    def on_cancelled(self, call: HttpCall) -> None:
        """Give up a call whose client went away."""
        self._driver.cancel(call)
        self._journal.on_cancelled(call, self._driver.clock() - call.arrived)
        if call.context is not None and call.context.trace is not None:
            call.context.trace.end(None, self._driver.clock())

    def _context(self, request: Request, route: routes.Route | None) -> Context | None:
        """Return what a request brings along; its trace begins here."""
        headers, tracer = request.headers, self._tracer
        if tracer is None and b"x-request-id" not in headers and b"traceparent" not in headers:
            return None
        context = carried(
            request.header(b"x-request-id"),
            request.header(b"traceparent"),
            request.header(b"tracestate"),
        )
        if tracer is not None and route is not None and route.is_inference:
            context = context or Context()
            context.trace = tracer.begin(context, route, self._driver.clock())
        return context

    def _told(self, request: Request, response: Response) -> Response:
        """Return the answer to a request that the dispatcher never sees."""
        context = self._context(request, request.route)
        if context is not None:
            self._end(context, response)
        return response

    def _end(self, context: Context, response: Response) -> None:
        if context.trace is not None:
            context.trace.end(response.status, self._driver.clock())
        if context.request_id is not None:
            response.more += f"{REQUEST_ID}: {context.request_id}\r\n"

    def _serves(self, model: str) -> bool:
        return model in self._driver.core.queues and model not in self.closing

    # What needs no inference

    def _look_up(self, request: Request, route: routes.Route, connection: Connection) -> Pending:
        context = self._context(request, route)

        async def answer() -> None:
            response = await self._found(route, "" if context is None else context.lines)
            if context is not None:
                self._end(context, response)
            connection.respond(response)

        task = asyncio.get_running_loop().create_task(answer())
        self._looking_up.add(task)
        task.add_done_callback(self._looking_up.discard)
        return task

    async def _found(self, route: routes.Route, more: str) -> Response:
        """Pass a status or metadata request to any live executable of the model."""
        failed = error(503, f"no executable of model {route.model} is ready", retry_after=RECOVERY)
        for executor in list(self._driver.core.executors.of(route.model)):
            name = executor.spec.name
            pool = self._pools.get(name)
            if pool is None:  # it went while another one was asked
                continue
            try:
                return await pool.fetch(route.path, timeout=self._backend_timeout, more=more)
            except BackendTimeout as fault:
                failed = error(504, f"executable {name}: {fault}")
            except BackendError as fault:
                failed = error(502, f"executable {name}: {fault}")
        return failed

    def _other(self, request: Request) -> Response:
        path = request.target.partition("?")[0]
        match path:
            case "/healthz":
                return Response(200, _TEXT, None, b"ok")
            case "/readyz":
                return self._ready()
            case _ if path.startswith("/v1/"):
                return error(400, f"Malformed request: {request.method} {request.target}")
            case _:
                return error(404, f"Not found: {path}")

    def _ready(self) -> Response:
        core = self._driver.core
        missing = [model for model in core.queues if not core.executors.serve(model)]
        # A model that has answered has joined.
        self.joining = {m for m in missing if m in self.joining and not core.queues[m].completed}
        missing = [model for model in missing if model not in self.joining]
        if self.draining:
            return error(503, "draining")
        if missing:
            return error(503, f"no executable is ready for: {', '.join(missing)}")
        return Response(200, _TEXT, None, b"ready")


def error(
    status: int, message: str, *, retry_after: float | None = None, close: bool = False
) -> Response:
    """Return an error in TensorFlow Serving's shape."""
    # A text that quotes the request may hold what is no UTF-8.
    body = orjson.dumps({"error": message.encode("utf-8", "replace").decode()})
    more = "" if retry_after is None else f"Retry-After: {units.retry_after_s(retry_after)}\r\n"
    return Response(status, _JSON, None, body, more, close=close)


def _answer(outcome: Outcome) -> Response:
    match outcome:
        case Response():
            return outcome
        case Reject(_, reason, retry_after, detail):
            status = _REJECTED[reason]
            return error(status, detail, retry_after=None if status == 504 else retry_after)
        case Fail(_, detail):
            return error(502, detail)
        case _:
            assert_never(outcome)


def _credentials(request: Request) -> Credentials:
    return Credentials(
        request.header(b"authorization"),
        request.header(b"x-api-key"),
        request.peer,
        request.certificate,
    )


def _denied(denied: Denied) -> Response:
    response = error(denied.status, str(denied))
    response.more = "".join(f"{name}: {value}\r\n" for name, value in denied.headers.items())
    return response


def _message(request: Request, route: routes.Route) -> Message:
    headers = request.headers
    content_type = headers.get(b"content-type")
    message = Message(
        route.path,
        request.body,
        _JSON if content_type is None else content_type.decode("latin-1"),
        request.header(b"content-encoding"),
    )
    length = request.header(b"inference-header-content-length")
    if length is not None:
        message.more = f"Inference-Header-Content-Length: {length}\r\n"
    return message


def _timeout(text: str) -> float:
    """Return a client's deadline in seconds."""
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_TIMEOUT_DIGITS or not int(text):
        bound = f"a whole number of milliseconds, 1 to {10**_MAX_TIMEOUT_DIGITS - 1}"
        raise _Refused(400, f"X-Request-Timeout-Ms: {text}: must be {bound}")
    return int(text) / 1000


def _missing(route: routes.Route) -> str:
    if route.is_inference:
        return f"Servable not found for request: {route.servable}"
    return f"Could not find any versions of model {route.model}"

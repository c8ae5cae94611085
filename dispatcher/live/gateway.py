"""The HTTP front end: maps requests to calls and outcomes to HTTP responses.

Bodies are opaque: row and columnar formats, base64, binary tensors and compression pass unchanged
in both directions. Errors have the shape of TensorFlow Serving and of the Open Inference Protocol,
`{"error": "…"}`, and TensorFlow Serving's status codes, plus

    413 body too large, or predicted to take too long for its size
                                429 queue full or predicted late, with Retry-After
    502 executable failed       503 no executable, with Retry-After
    408 request came too slowly 504 deadline passed, with Retry-After; or no answer in time

A client may set its own deadline (X-Request-Timeout-Ms) and yield to others (X-Request-Priority:
low). An X-Request-Id is returned on every answer. A request that has neither an id nor a trace
skips both. Further options for planned devices are in `dispatcher/live/planned/request_options.py`.
`GET /openapi.json` describes all of this.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from functools import cache
from importlib import resources
from typing import Final, assert_never, cast

import orjson

from dispatcher.live.auth.access import Credentials, Denied
from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.context import REQUEST_ID, Context
from dispatcher.live.driver import Call, Outcome
from dispatcher.live.http import routes
from dispatcher.live.http.handler import ClientConnection, Handler, Pending
from dispatcher.live.http.messages import Message, RequestTemplate, Response, request_template
from dispatcher.live.http.origins import PREFLIGHT
from dispatcher.live.http.request import Head, HttpRequest
from dispatcher.live.http.responses import JSON, error, json_response
from dispatcher.live.service import DRAIN_RETRY, EXTENSIONS, NAME, VERSION, Service
from dispatcher.state.executors import RECOVERY
from roma.domain.errors import BackendError, BackendTimeout
from roma.domain.events import Fail, Reason, Reject
from roma.domain.model import Priority
from roma.tensors.inflate import inflated_size, is_compressed

log: Final = logging.getLogger(__name__)

_REJECTED = {
    Reason.QUEUE_FULL: 429,
    Reason.PREDICTED_LATE: 429,
    Reason.DEADLINE: 504,
    Reason.NO_EXECUTABLE: 503,
    Reason.TOO_LARGE: 413,
}

_MAX_TIMEOUT_DIGITS: Final = 9
READ: Final = 2**16
"""Bytes of a compressed body that are unpacked to learn its size, in a quarter of a millisecond."""

METRICS: Final = "/monitoring/prometheus/metrics"
"""TensorFlow Serving's path for metrics; see `gateway.client_metrics`."""

_INTERACTIVE: Final = Priority.INTERACTIVE
_TEXT: Final = "text/plain; charset=utf-8"
_ANY: Final = re.compile(r"(^|&)any(=|&|$)")


class _Refused(Exception):
    """A request that is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpCall(Call):
    """A call that an HTTP connection waits for."""

    __slots__ = ("_gateway", "connection")

    def __init__(
        self,
        gateway: "Gateway",
        connection: ClientConnection,
        route: routes.Route,
        message: Message,
        context: Context | None,
    ) -> None:
        super().__init__(route.model, message, context=context)
        self._gateway = gateway
        self.connection = connection

    def on_outcome(self, outcome: Outcome) -> None:
        """Answer the client."""
        try:
            self._gateway.on_outcome(self, outcome)
        except Exception:  # a bug: it costs this client, and not the executable that answered
            log.exception("answer to request %d of model %s", self.id, self.model)
            self.connection.abort()

    def cancel(self) -> None:
        """Cancel the call: the client went away."""
        self._gateway.on_cancelled(self)


class Gateway(Handler):
    """Turns HTTP requests into calls and outcomes into HTTP responses; the server's `Handler`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._driver = service.driver
        self._planned_devices = service.planned_devices
        self._looking_up: set[asyncio.Task[None]] = set()

    # The server's handler

    def check_before_body(self, request: HttpRequest) -> Response | None:
        """Return an answer to a request whose body must not be read, or None."""
        head = request.head
        route = head.route
        if not self._service.is_open:
            refused = self._refused(request)
            if refused is not None:
                return self._finish_trace(request, refused)
        if route is None:
            return None
        if not self._service.serves(route.model):
            return self._finish_trace(request, error(404, routes.missing(route)))
        if self._service.program.refuses and route.is_inference:
            refusal = error(503, "draining", retry_after=DRAIN_RETRY, close=True)
            return self._finish_trace(request, refusal)
        if self._service.max_body:
            length = int(request.head.headers.get(b"content-length", b"0"))
            why = self._service.too_large(route.model, length)
            if why is not None:
                return self._finish_trace(request, error(413, why, close=True))
        return None

    def _refused(self, request: HttpRequest) -> Response | None:
        """Admit the caller of a request; return the answer to one that may not ask for this."""
        head = request.head
        route = head.route
        if route is None and (routes.is_open(head.target) or head.is_preflight):
            # What nobody vouches for is not kept: anybody could fill `buffered_bytes`.
            return error(413, "no body is read here", close=True) if _has_body(head) else None
        try:
            model = None if route is None else route.model
            request.grant = self._service.admit(_credentials(request), model)
        except Denied as denied:
            return _denied(denied)
        return None

    def handle(self, request: HttpRequest, connection: ClientConnection) -> Pending | None:
        """Handle a complete request."""
        head = request.head
        route = head.route
        if route is None:
            return self._handle_server_route(request, connection)
        if not route.is_inference:
            if self._planned_devices is not None:
                connection.respond(self._finish_trace(request, self._planned_devices.found(route)))
                return None
            return self._answer_lookup(request, route, connection)
        deadline, priority = None, _INTERACTIVE
        try:
            self._check(request, route)
            if head.has_options:
                deadline, priority = _options(head)
        except _Refused as refused:
            connection.respond(self._finish_trace(request, error(refused.status, str(refused))))
            return None
        context = self._context(request, route)
        if request.grant is not None and request.grant.priority is Priority.LOW:
            priority = Priority.LOW
        message = Message(_form(head, route), request.body)
        call = HttpCall(self, connection, route, message, context)
        if is_compressed(message.template.content_encoding):  # others cannot be read
            call.size = inflated_size(message.body, READ)
        call.deadline, call.priority, call.grant = deadline, priority, request.grant
        if self._planned_devices is not None:
            return self._begin(call, route, request)
        self._driver.submit(call)
        return call

    def _check(self, request: HttpRequest, route: routes.Route) -> None:
        """Check what was not known before the body."""
        if not self._service.serves(route.model):  # it was removed while the body came
            raise _Refused(404, routes.missing(route))
        why = self._service.too_large(route.model, len(request.body))
        if why is not None:  # no header gave its size
            raise _Refused(413, why)

    def _begin(self, call: HttpCall, route: routes.Route, request: HttpRequest) -> Pending | None:
        """Begin a call that planned devices answer."""
        assert self._planned_devices is not None
        message = cast(Message, call.message)
        begun = self._planned_devices.begin(call, route, message, request.head.headers)
        if not isinstance(begun, Response):
            return begun
        if call.context is not None:
            self._end(call.context, begun)
        call.connection.respond(begun)
        return None

    def error(self, request: HttpRequest, status: int, message: str) -> Response:
        """Return an error that ends the connection."""
        return self._finish_trace(request, error(status, message, close=True))

    # Outcomes

    def on_outcome(self, call: HttpCall, outcome: Outcome) -> None:
        """Answer a call."""
        context = call.context
        # The usual answer, without a trace or a log line.
        if (
            not isinstance(outcome, Response)
            or (context is not None and context.trace is not None)
            or outcome.status >= 400
            or self._service.writes_all
        ):
            self._service.on_ended(call, outcome)
            outcome = _answer(outcome)
        if context is not None:
            self._end(context, outcome)
        call.connection.respond(outcome)

    def on_cancelled(self, call: HttpCall) -> None:
        """Give up a call whose client went away."""
        self._service.cancel(call)

    def _context(self, request: HttpRequest, route: routes.Route | None) -> Context | None:
        """Return a request's context; its trace begins here."""
        head, service = request.head, self._service
        if service.tracer is None and not head.has_options:
            return None
        return service.context(
            head.header(b"x-request-id"),
            head.header(b"traceparent"),
            head.header(b"tracestate"),
            route,
        )

    def _finish_trace(self, request: HttpRequest, response: Response) -> Response:
        """Finish the trace of a request that the dispatcher never sees; return its answer."""
        context = self._context(request, request.head.route)
        if context is not None:
            self._end(context, response)
        return response

    def _end(self, context: Context, response: Response) -> None:
        self._service.end(context, response.status)
        if context.request_id is not None:
            response.more += f"{REQUEST_ID}: {context.request_id}\r\n"

    # What needs no inference

    def _answer_lookup(
        self, request: HttpRequest, route: routes.Route, connection: ClientConnection
    ) -> Pending:
        context = self._context(request, route)

        async def answer() -> None:
            response = await self._proxy_metadata(route)
            if context is not None:
                self._end(context, response)
            connection.respond(response)

        return self._start_task(answer, connection)

    def _scrape(self, request: HttpRequest, connection: ClientConnection) -> Pending:
        scrape = self._service.scrape
        assert scrape is not None

        async def answer() -> None:
            body, content_type = await scrape()
            connection.respond(self._finish_trace(request, Response(200, content_type, None, body)))

        return self._start_task(answer, connection)

    def _start_task(
        self, answer: Callable[[], Coroutine[None, None, None]], connection: ClientConnection
    ) -> Pending:
        async def guarded() -> None:
            try:
                await answer()
            except Exception:  # a bug: its client must not wait for ever
                log.exception("connection of %s", connection.peer)
                connection.abort()

        task = asyncio.get_running_loop().create_task(guarded())
        self._looking_up.add(task)
        task.add_done_callback(self._looking_up.discard)
        return task

    async def _proxy_metadata(self, route: routes.Route) -> Response:
        """Return the answer to a status or metadata request."""
        try:
            found = await self._service.lookups.http(route)
        except BackendTimeout as fault:
            return error(504, str(fault))
        except BackendError as fault:
            return error(502, str(fault))
        if found is None:
            return self._unavailable(route.model)
        return found

    def _unavailable(self, model: str) -> Response:
        """Return the answer for a model that nothing serves, also in a model status's format."""
        response = error(503, self._service.not_ready(model), retry_after=RECOVERY)
        reason = self._service.reasons.of_model(model)
        if reason:
            # The version is not known here: protobuf's default, 0.
            status = {"error_code": "UNAVAILABLE", "error_message": reason}
            version = {"version": "0", "state": "END", "status": status}
            body = {"error": self._service.not_ready(model), "model_version_status": [version]}
            response.body = orjson.dumps(body)
        return response

    def _ready(self, query: str) -> Response:
        why = self._service.not_ready_reason(for_any=_ANY.search(query) is not None)
        if why is not None:
            return error(503, why)
        return Response(200, _TEXT, None, self._service.ready().encode())

    def _handle_server_route(
        self, request: HttpRequest, connection: ClientConnection
    ) -> Pending | None:
        """Answer a request that names no model."""
        if request.head.is_preflight:
            allowed = Response(204, _TEXT, None, b"", PREFLIGHT)
            connection.respond(self._finish_trace(request, allowed))
            return None
        path, _, query = request.head.target.partition("?")
        if path == METRICS and request.head.method == "GET" and self._service.scrape is not None:
            return self._scrape(request, connection)
        response = self._server_response(request, path, query)
        connection.respond(self._finish_trace(request, response))
        return None

    def _server_response(self, request: HttpRequest, path: str, query: str) -> Response:
        if path == "/healthz":
            return Response(200, _TEXT, None, b"ok")
        if path == "/readyz":
            return self._ready(query)
        if path == "/openapi.json":
            return Response(200, JSON, None, _document())
        if path == "/v2" or path.startswith("/v2/"):
            return self._oip(request, path)
        if path.startswith("/v1/"):
            is_nameless = request.head.method == "GET" and routes.names_no_model(path)
            malformed = f"Malformed request: {request.head.method} {request.head.target}"
            return error(400, "Missing model name in request." if is_nameless else malformed)
        return error(404, f"Not found: {path}")

    def _oip(self, request: HttpRequest, path: str) -> Response:
        """Answer an Open Inference Protocol request about the server, not about a model."""
        if request.head.method in ("GET", "HEAD"):
            match path:
                case "/v2":
                    return json_response(
                        200, {"name": NAME, "version": VERSION, "extensions": EXTENSIONS}
                    )
                case "/v2/health/live":
                    return json_response(200, {"live": True})
                case "/v2/health/ready":
                    why = self._service.not_ready_reason()
                    if why is None:
                        return json_response(200, {"ready": True})
                    return json_response(503, {"ready": False, "error": why})
        return error(404, f"Not found: {request.head.method} {path}")


@cache
def _document() -> bytes:
    """Return the OpenAPI document of this port."""
    return resources.files("dispatcher.live").joinpath("openapi.json").read_bytes()


def _answer(outcome: Outcome) -> Response:
    match outcome:
        case Response():
            return outcome
        case GrpcResponse():
            raise AssertionError("an answer to a call of another protocol")
        case Reject(_, reason, retry_after, detail):
            return error(_REJECTED[reason], detail, retry_after=retry_after)
        case Fail(_, detail):
            return error(502, detail)
        case _:
            assert_never(outcome)


def _credentials(request: HttpRequest) -> Credentials:
    return Credentials(
        request.head.header(b"authorization"),
        request.head.header(b"x-api-key"),
        request.peer,
        request.certificate,
    )


def _has_body(head: Head) -> bool:
    """Return True unless a request says that it has no body."""
    length = head.headers.get(b"content-length", b"")
    return bool(length.strip(b"0")) or b"transfer-encoding" in head.headers


def _denied(denied: Denied) -> Response:
    response = error(denied.status, str(denied))
    response.more = "".join(f"{name}: {value}\r\n" for name, value in denied.headers.items())
    return response


def _form(head: Head, route: routes.Route) -> RequestTemplate:
    """Return the template of requests to model servers for these headers."""
    if head.template is None:
        content_type = head.header(b"content-type")
        length = head.header(b"inference-header-content-length")
        head.template = request_template(
            route.path,
            JSON if content_type is None else content_type,
            head.header(b"content-encoding"),
            "" if length is None else f"Inference-Header-Content-Length: {length}\r\n",
        )
    return head.template


def _options(head: Head) -> tuple[float | None, Priority]:
    """Return a client's own deadline in seconds, if it has one, and its priority."""
    timeout, priority = head.header(b"x-request-timeout-ms"), head.header(b"x-request-priority")
    return (
        None if timeout is None else _timeout(timeout),
        _INTERACTIVE if priority is None else _priority(priority),
    )


def _priority(text: str) -> Priority:
    try:
        return Priority(text)
    except ValueError:
        known = " or ".join(Priority)
        raise _Refused(400, f"X-Request-Priority: {text}: must be {known}") from None


def _timeout(text: str) -> float:
    """Return a client's deadline in seconds."""
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_TIMEOUT_DIGITS or not int(text):
        bound = f"a whole number of milliseconds, 1 to {10**_MAX_TIMEOUT_DIGITS - 1}"
        raise _Refused(400, f"X-Request-Timeout-Ms: {text}: must be {bound}")
    return int(text) / 1000

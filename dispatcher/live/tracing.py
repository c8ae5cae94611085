"""OpenTelemetry spans of requests; imported only when `gateway.traces` is on.

    POST /v1/models/{model}:predict   SERVER    the whole request in the gateway
    ├── queue                         INTERNAL  arrival to execution, or to the end of waiting
    └── execute                       CLIENT    sent to answered; the model server's parent

A gRPC call's first span is named after its method, tensorflow.serving.PredictionService/Predict.

OpenTelemetry's environment variables define where spans go (OTEL_EXPORTER_OTLP_…), how many
(OTEL_TRACES_SAMPLER), in which batches (OTEL_BSP_…) and under which name (OTEL_SERVICE_NAME). A
separate thread sends them. While it cannot, the newest spans replace the oldest in its queue: no
request waits or fails, and the log reports it once.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context as SpanParent
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as SpanSource

from dispatcher.live.backends.backend_address import Answer, GrpcResponse
from dispatcher.live.context import AnyRoute, Context
from dispatcher.live.http.messages import Response
from dispatcher.live.http.routes import GrpcRoute
from dispatcher.live.request_log import verdict
from roma.domain.errors import BackendError, BackendUnreachable, ConfigError
from roma.domain.events import Fail, Reject
from roma.telemetry.tasks import is_set_within

log = logging.getLogger(__name__)

_GRPC_FAULTS = frozenset({2, 4, 12, 13, 14, 15})
"""gRPC statuses that are a server's error, by OpenTelemetry's conventions: UNKNOWN,
DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS."""

FLUSH = 2.0
"""Seconds for the delivery of the last spans when the program ends."""


class OtelTracer:
    """Creates the traces of one gateway on `host` and these ports; a thread sends them.

    `grpc_port` is None where there is no gRPC; `scheme` is http, or https over TLS.
    """

    def __init__(
        self, host: str, port: int, grpc_port: int | None = None, *, scheme: str = "http"
    ) -> None:
        self._host = host
        self._port = port
        self._grpc_port = grpc_port
        self._scheme = scheme
        self._said = _Said()
        self._said.install()
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "roma"}))
        try:
            # `close` shuts it down, within a bound; not again at exit, without one.
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            exporter = _Told(OTLPSpanExporter(), self._said)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        except (ValueError, OSError) as error:  # an invalid OTEL_… variable
            self._said.remove()
            raise ConfigError(f"gateway.traces = true: OpenTelemetry: {error}") from error
        self._said.delivers = True
        self._source = self._provider.get_tracer("roma")

    def begin(self, context: Context, route: AnyRoute, now: float) -> "Spans":
        """Begin the trace of a request, or continue the one that it is part of."""
        parent = SpanParent()  # never OpenTelemetry's current context: tasks interleave
        if context.traceparent is not None:
            parent = set_span_in_context(NonRecordingSpan(_remote(context)), parent)
        protocol = _protocol(route)
        attributes = {**self._described(route), **protocol, "roma.model": route.model}
        if context.request_id is not None:
            attributes["roma.request_id"] = context.request_id
        offset = time.time_ns() - int(now * 1e9)
        span = self._source.start_span(
            _name(route),
            parent,
            SpanKind.SERVER,
            attributes,
            start_time=int(now * 1e9) + offset,
        )
        return Spans(self._source, span, route.model, offset, protocol)

    def _described(self, route: AnyRoute) -> dict[str, str | int]:
        if isinstance(route, GrpcRoute):
            return {"server.address": self._host, "server.port": self._grpc_port or 0}
        return {
            "server.address": self._host,
            "server.port": self._port,
            "url.scheme": self._scheme,
            "http.route": route.template,
            "url.path": route.path,
        }

    async def close(self) -> None:
        """Deliver the remaining spans, for at most FLUSH seconds."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nothing waits any more: the loop is closed
                loop.call_soon_threadsafe(done.set)

        # A daemon thread: the program's end does not wait for it either.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        if not await is_set_within(done, FLUSH):
            log.warning("gave up on the last spans after %g s", FLUSH)
        self._said.remove()


class Spans:
    """The spans of one request; only the context if it is not recorded.

    `offset` converts the clock of `now` to nanoseconds since 1970. It is the same for all spans of
    a request, so that they stay in order when the wall clock is set.
    """

    __slots__ = (
        "_context",
        "_execute",
        "_model",
        "_offset",
        "_outcome",
        "_protocol",
        "_sla",
        "_source",
        "_span",
        "_waiting_since",
    )

    def __init__(
        self,
        source: SpanSource,
        span: Span,
        model: str,
        offset: int,
        protocol: Mapping[str, str | int],
    ) -> None:
        self._source = source
        self._protocol = protocol
        """Attributes that the spans of the client's request and of its execution share."""
        self._span = span
        self._context = set_span_in_context(span, SpanParent())
        self._model = model
        self._offset = offset
        self._sla = 0.0
        self._waiting_since: float | None = None
        self._execute: Span | None = None
        self._outcome: tuple[str, str | None] | None = None

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def on_queued(self, now: float, *, sla: float) -> None:
        """Note that the dispatcher has queued the request."""
        self._waiting_since, self._sla = now, sla
        self._span.set_attribute("roma.sla", sla)

    def on_executing(
        self, executable: str, device: str, address: tuple[str, int | None], now: float
    ) -> Mapping[str, str]:
        """Begin an execution's span; return the headers that make it the model server's parent."""
        if not self._span.is_recording():
            return _headers(self._span.get_span_context())  # as good a parent: neither is exported
        self._end_waiting(now)
        host, port = address
        attributes: dict[str, str | int] = {
            **self._protocol,
            "server.address": host,
            "roma.model": self._model,
            "roma.executable": executable,
            "roma.device": device,
        }
        if port is None:
            attributes["network.transport"] = "unix"
        else:
            attributes["server.port"] = port
        span = self._source.start_span(
            "execute", self._context, SpanKind.CLIENT, attributes, start_time=self._ns(now)
        )
        self._execute = span
        self._span.set_attribute("roma.device", device)
        return _headers(span.get_span_context())

    def on_executed(self, result: Answer | BackendError, now: float) -> None:
        """End an execution's span; after `BackendUnreachable` the request waits again."""
        if self._execute is None:
            return  # cancelled before, or not recorded
        span, self._execute = self._execute, None
        if isinstance(result, Response):
            span.set_attribute("http.response.status_code", result.status)
            if result.status >= 400:
                _fail(span, str(result.status))
        elif isinstance(result, GrpcResponse):
            span.set_attribute("rpc.grpc.status_code", result.code)
            if result.code:
                _fail(span, str(result.code))
        else:
            _fail(span, type(result).__name__, str(result))
            if isinstance(result, BackendUnreachable):
                self._waiting_since = now
        span.end(self._ns(now))

    def on_outcome(
        self, outcome: Answer | Reject | Fail, response_time: float, executable: str | None
    ) -> None:
        """Record the dispatcher's outcome; `executable` ran the request last."""
        self._outcome = word, reason = verdict(outcome)
        attributes: dict[str, str | bool] = {"roma.outcome": word}
        if executable is not None:
            attributes["roma.executable"] = executable
        if reason is not None:
            attributes["roma.reason"] = reason
        if word == "answered":
            attributes["roma.late"] = response_time > self._sla
        self._span.set_attributes(attributes)

    def end(self, status: int | None, now: float) -> None:
        """End with the client's `status`; None: the client went away."""
        span = self._span
        if status is None:
            self._outcome = "cancelled", None
            span.set_attribute("roma.outcome", "cancelled")
        else:
            is_grpc = "rpc.system" in self._protocol
            key = "rpc.grpc.status_code" if is_grpc else "http.response.status_code"
            span.set_attribute(key, status)
            if status in _GRPC_FAULTS if is_grpc else status >= 500:
                _fail(span, str(status))
        self._end_waiting(now)
        if self._execute is not None:
            self._execute.set_attribute("roma.outcome", (self._outcome or ("failed", None))[0])
            if status is not None:
                _fail(self._execute, "given_up")
            self._execute.end(self._ns(now))
            self._execute = None
        span.end(self._ns(now))

    def _end_waiting(self, now: float) -> None:
        if self._waiting_since is None or not self._span.is_recording():
            return
        attributes = {"roma.model": self._model}
        if self._outcome is not None:
            word, reason = self._outcome
            attributes["roma.outcome"] = word
            if reason is not None:
                attributes["roma.reason"] = reason
        start = self._ns(self._waiting_since)
        self._waiting_since = None
        span = self._source.start_span(
            "queue", self._context, attributes=attributes, start_time=start
        )
        span.end(self._ns(now))

    def _ns(self, now: float) -> int:
        return int(now * 1e9) + self._offset


class _Said(logging.Handler):
    """Handler of OpenTelemetry's own log lines, which repeat per batch or span: logs each once.

    A failure to deliver spans is logged once until delivery works again. The lines are not passed
    on unchanged: an address can hold a password, and a header a token.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._once: set[str] = set()
        self.failing = False
        self.delivers = False
        """True once spans are sent: before, an exporter's lines are about its variables."""

    def install(self) -> None:
        """Start to handle the lines."""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False
        # It logs a line for each delivery, at level debug, with the address.
        logging.getLogger("urllib3").setLevel(logging.WARNING)

    def remove(self) -> None:
        """Stop handling the lines."""
        logger = logging.getLogger("opentelemetry")
        logger.removeHandler(self)
        logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        """Log the line, unless it was logged before."""
        if self.delivers and record.name.startswith("opentelemetry.exporter"):
            self.fail(_reason(record))
        elif "_shared_internal" in record.name:
            self.fail("the queue is full")
        elif str(record.msg) not in self._once:
            self._once.add(str(record.msg))
            # `util.re` quotes the header that it cannot read.
            is_secret = record.name == "opentelemetry.util.re"
            text = str(record.msg).replace("%s", "…") if is_secret else record.getMessage()
            log.warning("OpenTelemetry: %s", text)

    def fail(self, reason: str) -> None:
        """Log that spans are not delivered."""
        if not self.failing:
            self.failing = True
            log.warning("spans are not delivered (%s): check OTEL_EXPORTER_OTLP_ENDPOINT", reason)

    def succeed(self) -> None:
        """Log that spans are delivered again."""
        if self.failing:
            self.failing = False
            log.info("spans are delivered again")


class _Told(SpanExporter):
    """Wraps an exporter and reports whether each export worked."""

    def __init__(self, inner: SpanExporter, said: _Said) -> None:
        self._inner = inner
        self._said = said

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the exporter's thread."""
        try:
            result = self._inner.export(spans)
        except Exception as error:  # whatever the error is, the thread must live on
            self._said.fail(type(error).__name__)
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._said.succeed()
        else:
            self._said.fail("no reason given")
        return result

    def shutdown(self) -> None:
        """Send nothing more."""
        self._inner.shutdown()


def _reason(record: logging.LogRecord) -> str:
    """Return why a delivery failed, without secrets: a status or the kind of error."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    if str(record.msg).startswith("Transient") and arguments and isinstance(arguments[0], str):
        return arguments[0]  # the reason phrase of a status
    for argument in arguments:
        if isinstance(argument, BaseException):
            return type(argument).__name__
        if isinstance(argument, int):
            return f"status {argument}"
    return "no reason given"


def _remote(context: Context) -> SpanContext:
    """Return a client's span as OpenTelemetry's type."""
    assert context.traceparent is not None
    _, trace_id, span_id, flags = context.traceparent.split("-")[:4]
    state = None
    if context.tracestate is not None:
        state = TraceState.from_header([context.tracestate])
    flagged = TraceFlags(int(flags, 16))
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, flagged, state)


def _headers(span: SpanContext) -> Mapping[str, str]:
    if not span.is_valid:  # OTEL_SDK_DISABLED
        return {}
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    headers = {"traceparent": parent}
    if span.trace_state:
        headers["tracestate"] = span.trace_state.to_header()
    return headers


def _protocol(route: AnyRoute) -> dict[str, str | int]:
    if isinstance(route, GrpcRoute):
        service, _, method = route.path[1:].partition("/")
        return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
    return {"http.request.method": "POST"}


def _name(route: AnyRoute) -> str:
    """Return a span's name, without the model's: OpenTelemetry expects few names."""
    return route.path[1:] if isinstance(route, GrpcRoute) else f"POST {route.template}"


def _fail(span: Span, kind: str, detail: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, detail))

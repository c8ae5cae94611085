"""The clients' gRPC door: what a call asks for, and what its outcome is in gRPC's words.

Messages are opaque but for the model's name and version (`wire.py`): tensors pass as bytes in both
directions, and so does a model server's own status, with its text and its trailing metadata; its
initial metadata stays behind.

    UNAUTHENTICATED     no valid key or token    PERMISSION_DENIED  not for this model
    INVALID_ARGUMENT    no protobuf message, or no model in it
    NOT_FOUND           no such model            UNIMPLEMENTED  a model without a gRPC address
    RESOURCE_EXHAUSTED  queue full or predicted late, with retry-after; or a message too large
    DEADLINE_EXCEEDED   the deadline passed      UNAVAILABLE    no executable, or draining, with
    INTERNAL            executable failed                       retry-after

`retry-after` is trailing metadata, in whole seconds. A failed execution is INTERNAL: clients'
libraries send again what was UNAVAILABLE, and a request that was sent may have run, or may be what
its executable died of.

A call's deadline (grpc-timeout) counts where it is shorter than the model's own; a longer one, the
usual safety net, changes nothing. An x-request-id comes back in the trailing metadata.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, assert_never

import grpc
from grpc_health.v1 import health_pb2_grpc

from dispatcher.executors import RECOVERY
from dispatcher.live.access import Denied
from dispatcher.live.backend import Response
from dispatcher.live.context import REQUEST_ID, Context
from dispatcher.live.driver import Call, Outcome
from dispatcher.live.endpoint import Endpoint, GrpcMessage, GrpcResponse, Metadata
from dispatcher.live.grpc import callers, reflection
from dispatcher.live.grpc.health import Health
from dispatcher.live.grpc.methods import METHODS, BadRequest, Own, Passed
from dispatcher.live.routes import GrpcRoute
from dispatcher.live.service import DRAIN_RETRY, Service
from roma import units
from roma.errors import BackendError, BackendTimeout
from roma.events import Fail, Reason, Reject
from roma.gateway_config import GatewayConfig
from roma.model import Priority

log = logging.getLogger(__name__)

MAX_TEXT = 1024
"""Characters of an error's text: it travels in a header."""

EARLY = 0.05
"""Seconds. A client that goes this shortly before its deadline went because of it."""

_CODES = {status.value[0]: status for status in grpc.StatusCode}
_Code = grpc.StatusCode

_REJECTED = {
    Reason.QUEUE_FULL: _Code.RESOURCE_EXHAUSTED,
    Reason.PREDICTED_LATE: _Code.RESOURCE_EXHAUSTED,
    Reason.DEADLINE: _Code.DEADLINE_EXCEEDED,
    Reason.NO_EXECUTABLE: _Code.UNAVAILABLE,
}

_ServicerContext = Any
"""grpc.aio.ServicerContext; grpc carries no types."""


class GrpcCall(Call):
    """A call that a handler waits for, in `answer`."""

    def __init__(
        self,
        service: Service,
        route: GrpcRoute,
        body: bytes,
        *,
        deadline: float | None,
        context: Context | None,
    ) -> None:
        message = GrpcMessage(route.path, body)
        super().__init__(route.model, message, deadline=deadline, context=context)
        self._service = service
        self.answer: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()

    def on_outcome(self, outcome: Outcome) -> None:
        """Tell the handler, if it is still there."""
        self._service.on_ended(self, outcome)
        answer = _answer(outcome)
        if self.context is not None:
            self._service.end(self.context, answer.code)
        if not self.answer.done():
            self.answer.set_result(answer)

    def cancel(self) -> None:
        """The client went away, or its deadline passed: then the dispatcher's clock ends the call.

        gRPC does not say which of the two it was.
        """
        left = self.arrived + (self.deadline or 0.0) - self._service.driver.clock()
        if self.deadline is None or left > EARLY:
            self._service.cancel(self)


class GrpcServer:
    """The gRPC port; `shared` with other dispatchers of this machine."""

    def __init__(self, service: Service, config: GatewayConfig, *, shared: bool = False) -> None:
        self._service = service
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", config.limits.head_bytes),
                ("grpc.absolute_max_metadata_size", config.limits.head_bytes),
                # Off, lest two gateways share a port unnoticed.
                ("grpc.so_reuseport", int(shared)),
            ]
        )
        self._server.add_generic_rpc_handlers((_Methods(self._handlers()),))
        self._health = Health(service)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def listen(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        """Accept connections; raise OSError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, credentials)
        except RuntimeError as error:  # its text names no reason
            raise _reason(host, port) or OSError(str(error)) from None
        await self._server.start()

    async def close(self, timeout: float) -> None:
        """Accept no more, and give up what has not ended within `timeout`."""
        self._health.end()
        await self._server.stop(timeout)

    def _handlers(self) -> dict[str, Any]:
        """Return them by method; bytes in and bytes out, for no serialiser is named."""
        found = {
            path: grpc.unary_unary_rpc_method_handler(self._handler(method))
            for path, method in METHODS.items()
        }
        return found | reflection.handlers(self._service)

    def _handler(self, method: Passed | Own) -> Callable[[bytes, _ServicerContext], Any]:
        async def handle(body: bytes, context: _ServicerContext) -> bytes:
            carried, answer = None, GrpcResponse(0)
            try:
                if isinstance(method, Own):
                    if not method.is_open:
                        self._service.admit(callers.credentials(context), None).release()
                    answer.body = method.answer(self._service)
                else:
                    route = method.route(body)
                    carried = self._context(context, route)
                    answer = await self._let_in(method, route, body, context, carried)
            except BadRequest as error:
                answer = refusal(_Code.INVALID_ARGUMENT, str(error))
            except Denied as denied:
                answer = callers.refused(denied)
                if carried is not None:
                    self._service.end(carried, answer.code)
            if carried is None:
                carried = self._context(context, None)
            return await _respond(context, answer, carried)

        return handle

    async def _let_in(
        self,
        method: Passed,
        route: GrpcRoute,
        body: bytes,
        context: _ServicerContext,
        carried: Context | None,
    ) -> GrpcResponse:
        """Answer a caller who may ask for this; raise Denied."""
        grant = self._service.admit(callers.credentials(context), route.model)
        try:
            priority = callers.priority(context, grant.priority)
            return await self._answered(method, route, body, context, carried, priority)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        finally:
            grant.release()

    async def _answered(  # noqa: PLR0917 - as above, and what was found of it
        self,
        method: Passed,
        route: GrpcRoute,
        body: bytes,
        context: _ServicerContext,
        carried: Context | None,
        priority: Priority,
    ) -> GrpcResponse:
        answer = self._refused(route)
        if answer is not None:
            if carried is not None:
                self._service.end(carried, answer.code)
            return answer
        if not method.is_inference:
            return await self._found(route, body, "" if carried is None else carried.lines)
        deadline = self._deadline(route.model, context, priority)
        call = GrpcCall(self._service, route, body, deadline=deadline, context=carried)
        call.priority = priority
        self._service.driver.submit(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _refused(self, route: GrpcRoute) -> GrpcResponse | None:
        """Return the answer to a call that goes no further, or None."""
        service = self._service
        if not service.serves(route.model):
            return refusal(_Code.NOT_FOUND, route.missing)
        if service.draining and route.is_inference:
            return refusal(_Code.UNAVAILABLE, "draining", retry_after=DRAIN_RETRY)
        for executor in service.driver.core.executors.of(route.model):
            endpoint = service.endpoints.get(executor.spec.name)
            if endpoint is not None and endpoint.channel is None:
                return refusal(_Code.UNIMPLEMENTED, _no_address(route.model, executor.spec.name))
        return None

    def _deadline(self, model: str, context: _ServicerContext, priority: Priority) -> float | None:
        """Return the client's deadline if it is shorter than what the model's clients are told."""
        left: float | None = context.time_remaining()
        longest = self._service.driver.core.queues[model].spec.deadline
        if left is None or (priority is Priority.INTERACTIVE and left >= longest):
            return None
        return max(0.0, left)

    async def _found(self, route: GrpcRoute, body: bytes, more: str) -> GrpcResponse:
        """Pass a status or metadata request to any live executable of the model."""
        message, timeout = GrpcMessage(route.path, body), self._service.backend_timeout

        async def fetch(endpoint: Endpoint) -> GrpcResponse:
            if endpoint.channel is None:
                raise BackendError("it has no gRPC address")
            return await endpoint.channel.fetch(message, timeout=timeout, more=more)

        try:
            found = await self._service.ask(route.model, fetch)
        except BackendTimeout as fault:
            return refusal(_Code.DEADLINE_EXCEEDED, str(fault))
        except BackendError as fault:
            return refusal(_Code.UNAVAILABLE, str(fault))  # a look-up may be asked again
        if found is None:
            text = f"no executable of model {route.model} is ready"
            return refusal(_Code.UNAVAILABLE, text, retry_after=RECOVERY)
        return found

    def _context(self, context: _ServicerContext, route: GrpcRoute | None) -> Context | None:
        """Return what a call brings along; its trace begins here."""
        found: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if key in _WANTED:  # of one name are one list, as in HTTP
                found[key] = f"{found[key]},{value}" if key in found else value
        if not found and self._service.tracer is None:
            return None
        return self._service.context(
            found.get("x-request-id"), found.get("traceparent"), found.get("tracestate"), route
        )


_WANTED = frozenset({"x-request-id", "traceparent", "tracestate"})


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc carries no types
    """Finds a method's handler."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def refusal(code: grpc.StatusCode, text: str, *, retry_after: float | None = None) -> GrpcResponse:
    """Return an error."""
    trailing: Metadata = ()
    if retry_after is not None:
        trailing = (("retry-after", str(units.retry_after_s(retry_after))),)
    return GrpcResponse(code.value[0], b"", text, trailing)


def _answer(outcome: Outcome) -> GrpcResponse:
    match outcome:
        case GrpcResponse():
            return outcome
        case Response():
            raise AssertionError("an answer to another door's call")
        case Reject(_, reason, retry_after, detail):
            return refusal(_REJECTED[reason], detail, retry_after=retry_after)
        case Fail(_, detail):
            return refusal(_Code.INTERNAL, detail)
        case _:
            assert_never(outcome)


async def _respond(
    context: _ServicerContext, answer: GrpcResponse, carried: Context | None
) -> bytes:
    trailing = answer.trailing
    if carried is not None and carried.request_id is not None:
        trailing = (*trailing, (REQUEST_ID.lower(), carried.request_id))
    if answer.code:
        code = _CODES.get(answer.code, _Code.UNKNOWN)
        await context.abort(code, answer.message[:MAX_TEXT], trailing)
    if trailing:
        context.set_trailing_metadata(trailing)
    return answer.body


def _no_address(model: str, executable: str) -> str:
    return (
        f"model {model}: executable {executable} has no gRPC address: set `grpc` of the executable,"
        " or grpc_offset of its worker, in roma.yaml"
    )


def _reason(host: str, port: int) -> OSError | None:
    """Return why one cannot listen there."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return None
    except OSError as error:
        return error

"""A call at the gRPC port, in the order in which it happens.

The metadata identifies the caller. So a caller is admitted before the message is read: gRPC asks
for no more of it than its first window, and an unauthenticated client's message is never held. The
message names the model; only then is it known whether this caller may call it.
"""

import asyncio
import logging
from typing import Any

import grpc

from dispatcher.live.auth.callers import Denied, Grant
from dispatcher.live.backends.backend_address import GrpcMessage, GrpcResponse
from dispatcher.live.context import Context
from dispatcher.live.driver import Call, Outcome
from dispatcher.live.grpc import callers
from dispatcher.live.grpc.call_limits import CallSlot, ConnectionLimits
from dispatcher.live.grpc.methods import Own, Passed
from dispatcher.live.grpc.responses import RefusedCall, outcome_answer, refusal, respond
from dispatcher.live.http.routes import GrpcRoute, missing
from dispatcher.live.service import Service
from dispatcher.state.executors import RECOVERY
from roma.domain.errors import BackendError, BackendTimeout
from roma.domain.model import Priority

log = logging.getLogger(__name__)

EARLY = 0.05
"""Seconds. A client that disconnects this shortly before its deadline did so because of it."""

_Code = grpc.StatusCode

_ServicerContext = Any
"""grpc.aio.ServicerContext; grpc carries no types."""


class GrpcCall(Call):
    """A call that a handler waits for, in `answer`."""

    def __init__(
        self,
        service: Service,
        model: str,
        message: GrpcMessage,
        *,
        deadline: float | None,
        context: Context | None,
    ) -> None:
        super().__init__(model, message, deadline=deadline, context=context)
        self._service = service
        self.answer: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()

    def on_outcome(self, outcome: Outcome) -> None:
        """Pass the outcome to the handler, if it still waits."""
        try:
            self._tell(outcome)
        except Exception as bug:  # it costs this client, and not the executable that answered
            log.exception("answer to request %d of model %s", self.id, self.model)
            if not self.answer.done():
                self.answer.set_exception(bug)

    def _tell(self, outcome: Outcome) -> None:
        self._service.on_ended(self, outcome)
        answer = outcome_answer(outcome)
        if self.context is not None:
            self._service.end(self.context, answer.code)
        if not self.answer.done():
            self.answer.set_result(answer)

    def cancel(self) -> None:
        """Cancel the call, unless its deadline passed: then the dispatcher's clock ends it.

        The client went away or its deadline passed; gRPC does not say which.
        """
        if self.answer.done() and not self.answer.cancelled():
            return  # it disconnected while it was being answered
        left = self.arrived + (self.deadline or 0.0) - self._service.driver.clock()
        if self.deadline is None or left > EARLY:
            self._service.cancel(self)


class Rpc:
    """A call of a method that a model server answers; `run` it once."""

    __slots__ = ("_carried", "_context", "_limits", "_method", "_service")

    def __init__(
        self, service: Service, limits: ConnectionLimits, method: Passed, context: _ServicerContext
    ) -> None:
        self._service = service
        self._limits = limits
        self._method = method
        self._context = context
        self._carried: Context | None = None
        """The call's request id and trace."""

    async def run(self) -> bytes:
        """Return the answer's message; an error ends the call. It holds nothing by then."""
        try:
            with self._limits.take(self._context) as slot:
                answer = self._limits.hold_answer(self._context, await self._answer(slot))
        except (RefusedCall, Denied) as error:
            answer = callers.refused(error)
            if self._carried is not None:
                self._service.end(self._carried, answer.code)
        if self._carried is None:
            self._carried = brought(self._service, self._context, None)
        return await respond(self._context, answer, self._carried)

    async def _answer(self, slot: CallSlot) -> GrpcResponse:
        """Admit the caller, read the message, and answer it."""
        service, context = self._service, self._context
        grant = service.admit(callers.credentials(context), None)
        try:
            body = await slot.message()
            route = self._method.route(body)
            self._carried = brought(service, context, route)
            service.check(grant, route.model)
            priority = callers.priority(context, grant.priority)
            if self._method.otherwise is not None and not service.serves(route.model):
                return GrpcResponse(0, self._method.otherwise)
            self._check(route, len(body))
            if not route.is_inference:
                return await self._look_up(route, body)
            return await self._infer(route, body, priority, grant)
        finally:
            grant.release()

    def _check(self, route: GrpcRoute, size: int) -> None:
        """Raise RefusedCall if nothing can answer a message of that size."""
        service = self._service
        if not service.serves(route.model):
            raise RefusedCall(_Code.NOT_FOUND, missing(route))
        if (why := service.too_large(route.model, size)) is not None:
            raise RefusedCall(_Code.RESOURCE_EXHAUSTED, why)
        if service.planned_devices is not None:
            text = f"model {route.model}: planned devices are called over REST alone"
            raise RefusedCall(_Code.UNIMPLEMENTED, text)
        for executor in service.driver.core.executors.of(route.model):
            endpoint = service.endpoints.get(executor.spec.name)
            if endpoint is not None and endpoint.channel is None:
                raise RefusedCall(_Code.UNIMPLEMENTED, _no_address(route.model, executor.spec.name))

    async def _infer(
        self, route: GrpcRoute, body: bytes, priority: Priority, grant: Grant
    ) -> GrpcResponse:
        """Wait in the model's queue, and for the answer."""
        deadline = self._deadline(route.model, priority)
        message, context = GrpcMessage(route.path, body, self._method.renamed), self._carried
        call = GrpcCall(self._service, route.model, message, deadline=deadline, context=context)
        call.priority, call.grant = priority, grant
        self._service.driver.submit(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            call.cancel()
            raise

    def _deadline(self, model: str, priority: Priority) -> float | None:
        """Return the client's deadline if it is shorter than the model's default."""
        left: float | None = self._context.time_remaining()
        longest = self._service.driver.core.queues[model].spec.deadline
        if left is None or (priority is Priority.INTERACTIVE and left >= longest):
            return None
        return max(0.0, left)

    async def _look_up(self, route: GrpcRoute, body: bytes) -> GrpcResponse:
        """Return the answer to a status or metadata request."""
        try:
            found = await self._service.lookups.grpc(route, body)
        except BackendTimeout as fault:
            return refusal(_Code.DEADLINE_EXCEEDED, str(fault))
        except BackendError as fault:
            return refusal(_Code.UNAVAILABLE, str(fault))  # a look-up may be retried
        if found is None and self._method.otherwise is not None:
            return GrpcResponse(0, self._method.otherwise)
        if found is None:
            text = self._service.not_ready(route.model)
            return refusal(_Code.UNAVAILABLE, text, retry_after=RECOVERY)
        return found


async def answer_own(
    service: Service, limits: ConnectionLimits, method: Own, context: _ServicerContext
) -> bytes:
    """Answer a method of the gateway itself; its message is empty, so none is read."""
    try:
        with limits.take(context):
            if not method.is_open:
                service.admit(callers.credentials(context), None).release()
            answer = GrpcResponse(0, method.answer(service))
    except (RefusedCall, Denied) as error:
        answer = callers.refused(error)
    return await respond(context, answer, brought(service, context, None))


def brought(service: Service, context: _ServicerContext, route: GrpcRoute | None) -> Context | None:
    """Return a call's context; its trace begins here, if there is a `route`."""
    names = ("x-request-id", "traceparent", "tracestate")
    request_id, parent, state = [callers.metadata(context, name) for name in names]
    return service.context(request_id, parent, state, route)


def _no_address(model: str, executable: str) -> str:
    return (
        f"model {model}: executable {executable} has no gRPC address: set `grpc` of the executable,"
        " or grpc_offset or kubernetes.grpc_port of its worker, in roma.yaml"
    )

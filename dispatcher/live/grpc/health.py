"""The gRPC health protocol (grpc.health.v1): whether new calls should come here.

The empty name and the names of the services stand for the gateway: serving while `GET /readyz` is
200. A model's name stands for the model.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.grpc import wire
from dispatcher.live.grpc.call_limits import CallSlot, ConnectionLimits
from dispatcher.live.grpc.methods import SERVICES
from dispatcher.live.grpc.responses import RefusedCall, bad_request, respond
from dispatcher.live.service import Service
from roma.telemetry.tasks import is_set_within

LOOK = 0.5
"""Seconds between two checks for watchers."""

WATCHERS = 1000
"""Most watchers, and at most half of `gateway.limits.connections`: they need no key, stay for as
long as they like, and each costs a ten-thousandth of a core."""

NAME = "grpc.health.v1.Health"
_GATEWAY = frozenset({"", NAME, *SERVICES})
_STATUS = health_pb2.HealthCheckResponse
_ServicerContext = Any


class GatewayHealth:
    """Answers health requests for the gateway, without a key."""

    def __init__(self, service: Service, limits: ConnectionLimits) -> None:
        self._service = service
        self._limits = limits
        self._ending = asyncio.Event()
        self._watching: dict[CallSlot, None] = {}
        """Watchers, the oldest first; one that is taken out ends at its next look."""

    def handlers(self) -> dict[str, Any]:
        """Return the handlers by method; bytes in and bytes out."""
        return {
            f"/{NAME}/Check": grpc.stream_unary_rpc_method_handler(self._check),
            f"/{NAME}/Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    def end(self) -> None:
        """Send watchers a last status and end their streams, which would delay the shutdown."""
        self._ending.set()

    async def _check(self, _: object, context: _ServicerContext) -> bytes:
        """Return the current status."""
        try:
            with self._limits.take(context) as slot:
                name = await _asked(slot)
                status = self._status(name)
                if status == _STATUS.SERVICE_UNKNOWN:
                    raise RefusedCall(grpc.StatusCode.NOT_FOUND, f"unknown service {name}")
                answer = GrpcResponse(0, _said(status))
        except RefusedCall as refused:
            answer = refused.answer
        return await respond(context, answer)

    async def _watch(self, _: object, context: _ServicerContext) -> None:
        """Send the status, and each change of it, until `end`."""
        try:
            with self._limits.take(context) as slot:
                name = await _asked(slot)
                if len(self._watching) >= self._most_watchers:
                    del self._watching[next(iter(self._watching))]
                self._watching[slot] = None
                try:
                    await self._tell(name, context, slot)
                finally:
                    self._watching.pop(slot, None)
        except RefusedCall as refused:
            await respond(context, refused.answer)

    @property
    def _most_watchers(self) -> int:
        return min(WATCHERS, max(1, self._limits.http.limits.connections // 2))

    async def _tell(self, name: str, context: _ServicerContext, slot: CallSlot) -> None:
        told, is_ending = None, False
        while not is_ending:
            is_ending = self._ending.is_set() or slot not in self._watching
            status = self._status(name)
            if status != told:
                await context.write(_said(status))
                told = status
            await is_set_within(self._ending, LOOK)

    def _status(self, name: str) -> int:
        service = self._service
        if name in _GATEWAY:
            is_serving = service.not_ready_reason() is None
        elif service.serves(name):
            is_serving = not service.program.is_ending and service.driver.core.executors.serve(name)
        else:
            return int(_STATUS.SERVICE_UNKNOWN)
        return int(_STATUS.SERVING if is_serving else _STATUS.NOT_SERVING)


async def _asked(slot: CallSlot) -> str:
    """Return the service or model of the request, the message's only field; raise RefusedCall."""
    message = await slot.unauthenticated_message()
    try:
        return wire.name_and_version(message)[0]
    except wire.Malformed as error:
        raise bad_request(f"The request cannot be read: {error}") from None


def _said(status: int) -> bytes:
    return bytes(_STATUS(status=status).SerializeToString())

"""The gRPC health protocol (grpc.health.v1): whether new calls should come here.

The empty name and the names of the services mean the gateway: serving while `GET /readyz` is 200.
A model's name means the model.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
import contextlib
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dispatcher.live.grpc.methods import SERVICES
from dispatcher.live.service import Service

LOOK = 0.5
"""Seconds between two looks for those who watch."""

_GATEWAY = frozenset({"", "grpc.health.v1.Health", *SERVICES})
_STATUS = health_pb2.HealthCheckResponse
_Message = Any
_ServicerContext = Any


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Answers for the gateway."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Tell those who watch a last time, and send them away: they would hold up the end."""
        self._ending.set()

    async def Check(self, request: _Message, context: _ServicerContext) -> _Message:  # noqa: N802
        """Return the status of now."""
        status = self._status(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service}")
        return _STATUS(status=status)

    async def Watch(self, request: _Message, context: _ServicerContext) -> None:  # noqa: N802
        """Send the status, and each other one, until `end`."""
        told, is_ending = None, False
        while not is_ending:
            is_ending = self._ending.is_set()
            status = self._status(request.service)
            if status != told:
                await context.write(_STATUS(status=status))
                told = status
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._ending.wait()

    def _status(self, name: str) -> int:
        service = self._service
        if name in _GATEWAY:
            is_serving = service.unready() is None
        elif service.serves(name):
            is_serving = not service.draining and service.driver.core.executors.serve(name)
        else:
            return int(_STATUS.SERVICE_UNKNOWN)
        return int(_STATUS.SERVING if is_serving else _STATUS.NOT_SERVING)

"""gRPC health protocol (grpc.health.v1) for the server, its services and each model.

A model is queried by its name, the server by the empty name; the services are as ready as the
server. Watchers get every change, and their calls end when the server drains, so that they do not
keep it from stopping.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from roma.serving.models import Models
from roma.serving.rpc import short

NAME = "grpc.health.v1.Health"
_STATUS = health_pb2.HealthCheckResponse.ServingStatus
_Context = Any


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Health service of the server; created and used in one event loop."""

    def __init__(self, models: Models, services: Collection[str]) -> None:
        self._models = models
        self._services = services
        self._changed = asyncio.Event()
        self._ending = False

    def changed(self) -> None:
        """Wake the watchers to read the state again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Send the watchers the last state and end their calls."""
        self._ending = True
        self.changed()

    async def Check(self, request: Any, context: _Context) -> Any:  # noqa: N802
        """Return the current state; aborts with NOT_FOUND for an unknown name."""
        status = self._status(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            name = request.service
            text = short(f"no model or service named {name!r}")
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: _Context) -> None:  # noqa: N802
        """Write the current state, and again after every change."""
        last = None
        while True:
            changed = self._changed  # before the state is read, so that no change is missed
            status = self._status(request.service)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
            last = status
            if self._ending:
                return
            await changed.wait()

    def _status(self, name: str) -> Any:
        ready = self._models.is_ready(None if name in ("", *self._services) else name)
        if ready is None:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if ready else _STATUS.NOT_SERVING

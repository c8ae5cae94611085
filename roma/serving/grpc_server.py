"""gRPC front end of the model server: methods, health, reflection, deadlines, draining.

Messages pass as bytes: a compute thread parses them, computes and serialises.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from roma.config.sockets import for_grpc, port_refusal, refusal, refuse_taken
from roma.domain.addresses import authority
from roma.domain.errors import in_words
from roma.serving.deadline import TIMEOUT_HEADER, seconds_left
from roma.serving.errors import Code, ListenError, RequestError
from roma.serving.health import NAME as HEALTH
from roma.serving.health import Health
from roma.serving.models import Models
from roma.serving.rpc import Method, services, short
from roma.serving.workers import ComputeThreads

MOST = 2**31 - 1
"""Most bytes of a message, for gRPC and for protobuf, however large a REST body may be."""

_CODES = {status.value[0]: status for status in grpc.StatusCode}
_log = logging.getLogger(__name__)


class GrpcServer:
    """gRPC server of `methods` over `models`.

    `workers` compute, `loader` loads models, and `clerk` runs the other methods.
    """

    def __init__(
        self,
        models: Models,
        methods: Sequence[Method],
        *,
        workers: ComputeThreads,
        clerk: ComputeThreads,
        loader: ComputeThreads,
        max_bytes: int,
    ) -> None:
        self._models = models
        self._methods = services(methods)
        self._workers = workers
        self._clerk = clerk
        self._loader = loader
        self._max_bytes = max_bytes
        self._health = Health(models, tuple(self._methods))
        self._server: Any = None
        self.port: int | None = None
        """Port that it listens on, set by `start`; None without a port."""

    async def start(self, host: str, port: int | None, path: Path | None) -> None:
        """Listen on a port, 0 for a free one, on a Unix socket, or both; raises ListenError."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(MOST, self._max_bytes)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # else two servers would share a port unnoticed
            ]
        )
        for service, methods in self._methods.items():
            server.add_generic_rpc_handlers((_handlers(service, methods, self._bind),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*self._methods, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        if port is not None:
            self.port = _bind(server, host, port)
        if path is not None:
            _bind_socket(server, path)
        loop = asyncio.get_running_loop()
        self._models.on_change = lambda: _call_in(loop, self._health.changed)
        await server.start()
        self._server = server

    async def stop(self, seconds: float) -> None:
        """Stop listening; give calls in flight `seconds` to end."""
        self._health.end()
        await self._server.stop(seconds)

    def _bind(self, method: Method) -> Callable[[bytes, Any], Any]:
        workers = self._workers if method.computes else self._clerk
        if method.loads:
            workers = self._loader

        async def answer(request: bytes, context: Any) -> bytes:
            try:
                return await workers.run_within(
                    _time_left(context),
                    method.answer,
                    self._models,
                    request,
                    self._max_bytes,
                )
            except RequestError as error:
                code, text = error.code, str(error)
            except Exception:
                _log.exception("%s/%s", method.service, method.name)
                code, text = Code.INTERNAL, "Internal error"
            await context.abort(_CODES[code], short(text))
            raise AssertionError("abort raises")

        return answer


def _time_left(context: Any) -> float | None:
    """Return a caller's remaining seconds, from its deadline or from a gateway's metadata.

    Raises RequestError for metadata that is not a valid time.
    """
    metadata = {key.lower(): value for key, value in context.invocation_metadata()}
    told = metadata.get(TIMEOUT_HEADER.lower())
    left = None if told is None else seconds_left({TIMEOUT_HEADER: told})
    times = (context.time_remaining(), left)
    return min((seconds for seconds in times if seconds is not None), default=None)


def _handlers(service: str, methods: Sequence[Method], bind: Callable[[Method], Any]) -> Any:
    # Without a deserialiser and a serialiser the messages stay bytes.
    unary = grpc.unary_unary_rpc_method_handler
    bound = {method.name: unary(bind(method)) for method in methods}
    return grpc.method_handlers_generic_handler(service, bound)


def _bind(server: Any, host: str, port: int) -> int:
    address = authority(host, port)
    try:
        return int(server.add_insecure_port(address))
    except RuntimeError:  # its text names no reason
        why = port_refusal(host, port)
        told = "gRPC gives no reason" if why is None else in_words(why)
        raise ListenError(f"cannot listen on {address}: {told}") from None


def _bind_socket(server: Any, path: Path) -> None:
    try:
        refuse_taken(path)
        server.add_insecure_port(for_grpc(path))
    except (OSError, RuntimeError) as error:
        why: Exception = error if isinstance(error, OSError) else refusal(path) or error
        raise ListenError(f"cannot listen on {path}: {in_words(why)}") from None


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Schedule a callback on an event loop from any thread; does nothing on a closed loop."""
    with contextlib.suppress(RuntimeError):  # closed
        loop.call_soon_threadsafe(callback)

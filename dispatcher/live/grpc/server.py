"""The gRPC front end: maps calls to requests and outcomes to gRPC statuses.

Messages are opaque except for the model's name and version (`wire.py`): tensors pass as bytes in
both directions, and so does a model server's own status, with its text and its trailing metadata;
its initial metadata is dropped.

    UNAUTHENTICATED     no valid key or token    PERMISSION_DENIED  not for this model
    INVALID_ARGUMENT    no protobuf message, or no model in it
    NOT_FOUND           no such model            UNIMPLEMENTED  a model without a gRPC address
    RESOURCE_EXHAUSTED  queue full or predicted late, too many calls, or too many bytes of them
                        together, with retry-after; or a message too large
    DEADLINE_EXCEEDED   the deadline passed      UNAVAILABLE    no executable, with retry-after
    INTERNAL            executable failed

`retry-after` is trailing metadata, in whole seconds. A failed execution is INTERNAL: client
libraries retry UNAVAILABLE, but a request that was sent may have run, or may have crashed its
executable.

A call's deadline (grpc-timeout) counts where it is shorter than the model's own; a longer one, the
usual safety net, changes nothing. An x-request-id is returned in the trailing metadata.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from dispatcher.live.grpc import callers, reflection
from dispatcher.live.grpc.call_limits import ConnectionLimits
from dispatcher.live.grpc.health import GatewayHealth
from dispatcher.live.grpc.methods import METHODS, Own, Passed
from dispatcher.live.grpc.rpc import Rpc, answer_own
from dispatcher.live.http.server import Server
from dispatcher.live.service import Service
from roma.config.sockets import for_grpc, port_refusal, refusal, refuse_taken
from roma.domain.addresses import authority

MOST: Final = 2**31 - 1
"""Most bytes of a message, for gRPC and for protobuf; an HTTP body may have one more."""


class GatewayGrpcServer:
    """The gRPC port, `shared` with other dispatchers of this machine, and its Unix socket."""

    def __init__(self, service: Service, http: Server, *, shared: bool = False) -> None:
        callers.log_no_metadata()
        self._service = service
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", min(MOST, http.bounds.max_body_bytes)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", http.limits.head_bytes),
                ("grpc.absolute_max_metadata_size", http.limits.head_bytes),
                # gRPC shows no connections, but limits them itself, with the value at the start.
                ("grpc.max_allowed_incoming_connections", http.limits.connections),
                ("grpc.server_handshake_timeout_ms", _ms(http.limits.head_timeout)),
                ("grpc.max_connection_idle_ms", _ms(http.limits.idle_timeout)),
                # Off, so that two gateways do not share a port unnoticed.
                ("grpc.so_reuseport", int(shared)),
            ],
        )
        self._limits = ConnectionLimits(http)
        self._health = GatewayHealth(service, self._limits)
        self._leaving: asyncio.Task[None] | None = None
        self.answering = 0
        """Calls of models that gRPC has not ended: their message or answer is not complete yet."""
        self._server.add_generic_rpc_handlers((_Methods(self._handlers()),))

    def bind(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> None:
        """Bind a port, before `start`; raise OSError."""
        address = authority(host, port)
        try:
            if credentials is None:
                self._server.add_insecure_port(address)
            else:
                self._server.add_secure_port(address, credentials)
        except RuntimeError as error:  # its text gives no reason
            raise port_refusal(host, port) or OSError(str(error)) from None

    def bind_socket(self, path: Path) -> None:
        """Bind a Unix socket, before `start`, without TLS; gRPC removes it. Raise OSError."""
        refuse_taken(path)
        try:
            self._server.add_insecure_port(for_grpc(path))
        except RuntimeError as error:  # its text gives no reason
            raise refusal(path) or OSError(str(error)) from None

    async def start(self) -> None:
        """Accept connections."""
        await self._server.start()

    def stop_listening(self, timeout: float) -> None:
        """Accept no more calls; those that are open have `timeout`.

        Clients are told so (GOAWAY, RFC 9113 §6.8): they send the next call over a new connection.
        """
        self._health.end()
        self._leaving = asyncio.create_task(self._server.stop(timeout))

    async def close(self, timeout: float) -> None:
        """Stop accepting, and cancel what has not ended within `timeout`."""
        self._health.end()
        await self._server.stop(timeout)
        if self._leaving is not None:
            await self._leaving

    def _handlers(self) -> dict[str, Any]:
        """Return the handlers by method; bytes in and bytes out, since no serialiser is named.

        For gRPC they are stream handlers: it would read the message of a unary call before calling
        them.
        """
        found = {
            path: grpc.stream_unary_rpc_method_handler(self._handler(method))
            for path, method in METHODS.items()
        }
        more = reflection.handlers(self._service, self._limits)
        return found | more | self._health.handlers()

    def _handler(self, method: Passed | Own) -> Callable[[object, Any], Any]:
        service, limits = self._service, self._limits
        if isinstance(method, Own):

            async def answer(_: object, context: Any) -> bytes:
                return await answer_own(service, limits, method, context)

            return answer

        async def run(_: object, context: Any) -> bytes:
            self.answering += 1
            context.add_done_callback(self._on_end)
            return await Rpc(service, limits, method, context).run()

        return run

    def _on_end(self, _: object) -> None:
        self.answering -= 1


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc carries no types
    """Finds the handler of a method."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

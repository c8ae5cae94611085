"""Lets tools such as grpcurl ask which methods and messages there are (server reflection).

The gateway knows no messages: it passes the question on to a model server, which speaks the same
protocols. Without one that is ready there is nothing to tell.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dispatcher.live.service import Service

METHODS = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1alpha", "v1")
)


def handlers(service: Service) -> dict[str, Any]:
    """Return the handlers by method; bytes in and bytes out."""
    return {
        method: grpc.stream_stream_rpc_method_handler(_passed(service, method))
        for method in METHODS
    }


def _passed(service: Service, method: str) -> Callable[..., AsyncIterator[bytes]]:
    async def pass_on(questions: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        for executor in list(service.driver.core.executors):
            endpoint = service.endpoints.get(executor.spec.name)
            if executor.live and endpoint is not None and endpoint.channel is not None:
                async for answer in endpoint.channel.stream(method, questions):
                    yield answer
                return
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no executable with gRPC is ready")

    return pass_on

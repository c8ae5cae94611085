"""Server reflection: tools such as grpcurl can list the methods and messages.

The gateway knows no messages: it forwards the request to a model server, which uses the same
protocols. Without a ready one there is no answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dispatcher.live.auth.access import Denied
from dispatcher.live.grpc import callers
from dispatcher.live.grpc.call_limits import CallSlot, ConnectionLimits
from dispatcher.live.grpc.responses import RefusedCall, respond
from dispatcher.live.service import Service

LONGEST = 60.0
"""Longest duration of a stream in seconds."""

METHODS = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1alpha", "v1")
)


def handlers(service: Service, limits: ConnectionLimits) -> dict[str, Any]:
    """Return the handlers by method; bytes in and bytes out."""
    return {
        method: grpc.stream_stream_rpc_method_handler(_passed(service, limits, method))
        for method in METHODS
    }


def _passed(
    service: Service, limits: ConnectionLimits, method: str
) -> Callable[[object, Any], Any]:
    async def pass_on(_: object, context: Any) -> None:
        try:
            with limits.take(context) as slot:
                grant = service.admit(callers.credentials(context), None)
                try:
                    async with asyncio.timeout(LONGEST):
                        async for answer in _answers(service, method, slot):
                            await context.write(answer)
                finally:
                    grant.release()
        except (RefusedCall, Denied) as error:
            await respond(context, callers.refused(error))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"{LONGEST:g} s are enough")
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    return pass_on


async def _answers(service: Service, method: str, slot: CallSlot) -> AsyncIterator[bytes]:
    """Yield a model server's answers; raise RefusedCall, or gRPC's own error if it breaks."""
    for executor in list(service.driver.core.executors):
        endpoint = service.endpoints.get(executor.spec.name)
        if executor.live and endpoint is not None and endpoint.channel is not None:
            refused: list[RefusedCall] = []
            async for answer in endpoint.channel.stream(method, _questions(slot, refused)):
                yield answer
            if refused:
                raise refused[0]
            return
    raise RefusedCall(grpc.StatusCode.UNAVAILABLE, "no executable with gRPC is ready")


async def _questions(slot: CallSlot, refused: list[RefusedCall]) -> AsyncIterator[bytes]:
    """Yield the client's requests; `refused` gets the reason if they end with an error.

    Raised in here, it would cancel the backend call, which would cancel the client's without a
    message.
    """
    try:
        while (question := await slot.next_message()) is not None:
            yield question
    except RefusedCall as error:
        refused.append(error)

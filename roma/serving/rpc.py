"""What a gRPC method is to the server: bytes in, bytes out; no socket, no protobuf.

A protocol's module lists its methods; `grpc_server` binds them to the socket. Requests reach a
method as they came, so that a thread parses them and not the event loop.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from roma.serving.errors import RequestError
from roma.serving.models import Models

Message = Any
"""A protobuf message. The generated classes carry no types, so that this is what they all are."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    `answer` takes the models, the request and the largest number of bytes a tensor of it may
    take; it runs in a thread, and raises RequestError. A method that computes needs a worker.
    """

    service: str
    name: str
    answer: Callable[[Models, bytes, int], bytes]
    computes: bool = False


def parse(message: Message, request: bytes) -> Message:
    """Fill an empty message and return it; raises RequestError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        message.ParseFromString(request)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise RequestError(f"The request is no {name} message") from None
    return message


def services(methods: Iterable[Method]) -> dict[str, list[Method]]:
    """Return the methods by service."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.service, []).append(method)
    return found

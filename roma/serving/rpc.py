"""What a gRPC method is to the server: bytes in, bytes out; no socket, no protobuf.

A protocol's module lists its methods; `grpc_server` binds them to the socket. Requests reach a
method as they came, so that a thread parses them and not the event loop.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roma.serving.models import Models


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    `answer` takes the models, the request and the largest number of bytes a tensor of it may
    take; it runs in a thread, and raises RequestError. A method that computes needs a worker; one
    that loads models runs where they are loaded, one after the other.
    """

    service: str
    name: str
    answer: Callable[[Models, bytes, int], bytes]
    computes: bool = False
    loads: bool = False


def services(methods: Iterable[Method]) -> dict[str, list[Method]]:
    """Return the methods by service."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.service, []).append(method)
    return found

"""Interface between the gRPC front end and a protocol: bytes in, bytes out.

A protocol's module lists its methods; `grpc_server` binds them to the socket. Requests reach a
method as bytes, so that a thread parses them and not the event loop. No socket, no protobuf.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from roma.serving.models import Models

MAX_ERROR_TEXT = 1024
"""Most bytes of an error text, TensorFlow Serving's limit. It is sent in a header, where a byte may
take three, and clients refuse headers of more than 8 KiB."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service.

    `answer` takes the models, the request and the most bytes that one of its tensors may take; it
    runs in a thread and raises RequestError. A method that computes runs in a compute thread; one
    that loads models runs in the loader thread, one at a time.
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


def short(text: str) -> str:
    """Return the beginning of an error text that a header can carry."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_ERROR_TEXT:
        return text
    return f"{data[:MAX_ERROR_TEXT].decode('utf-8', 'ignore')}...TRUNCATED"

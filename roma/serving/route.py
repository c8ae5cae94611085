"""Interface between the REST front end and a protocol: body and headers in, answer out.

A protocol's module turns a request line into a `RestRoute`, which `rest` executes. No socket.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roma.serving.models import Models

JSON: Mapping[str, str] = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class RestResponse:
    """The answer to one request."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


@dataclass(frozen=True, slots=True)
class RestRoute:
    """Handler of one request line.

    `answer` takes the models, the body and the headers; it raises RequestError. If it computes, it
    runs in a compute thread; otherwise it runs immediately, without a body.
    """

    answer: Callable[[Models, bytes, Mapping[str, str]], RestResponse]
    computes: bool = False

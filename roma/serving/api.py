"""TensorFlow Serving's REST paths and status codes; no socket, no model.

    GET  /v1/models/{model}[/versions/{version} | /labels/{label}][/metadata]
    POST /v1/models/{model}[/versions/{version} | /labels/{label}]:(predict | classify | regress)

Source: https://www.tensorflow.org/tfx/serving/api_rest and, where it is silent,
tensorflow_serving/model_servers/http_rest_api_util.cc and http_server.cc (2.19).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

import orjson

from roma.serving import versions
from roma.serving.errors import Code, RequestError

# TensorFlow Serving matches paths case-insensitively, but then accepts only lower-case methods.
_WHICH = r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_POST = re.compile(rf"/v1/models/(?P<model>[^/:]+){_WHICH}:(?P<action>[a-z]+)", re.IGNORECASE)
_GET = re.compile(
    rf"/v1/models(?:/(?P<model>[^/:]+))?{_WHICH}(?:/(?P<action>metadata))?", re.IGNORECASE
)

HTTP_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
"""`ToHTTPStatusCode` in http_server.cc."""


class ServingAction(StrEnum):
    """Action of a call."""

    STATUS = "status"
    METADATA = "metadata"
    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"

    @property
    def is_inference(self) -> bool:
        """True if the call has a body and needs a compute thread."""
        return self in (ServingAction.PREDICT, ServingAction.CLASSIFY, ServingAction.REGRESS)


@dataclass(frozen=True, slots=True)
class ServingCall:
    """A parsed request line; at most one of `version` and `label` is given."""

    action: ServingAction
    model: str
    version: int | None = None
    label: str | None = None


@lru_cache(maxsize=4096)
def parse(method: str, target: str) -> ServingCall:
    """Parse a request line into a call; `target` is the raw path including the query.

    Raises RequestError with TensorFlow Serving's own text: NOT_FOUND outside `/v1/`, else
    INVALID_ARGUMENT.
    """
    path = target.partition("?")[0]
    if not path.lower().startswith("/v1/"):
        raise RequestError("Not Found", Code.NOT_FOUND)
    match = {"POST": _POST, "GET": _GET}.get(method, _POST).fullmatch(path)
    action = _action(method, match["action"]) if match else None
    if match is None or action is None:
        raise RequestError(f"Malformed request: {method} {path}")
    if match["model"] is None:
        raise RequestError("Missing model name in request.")
    label = match["label"]
    return ServingCall(
        action,
        unquote(match["model"]),
        _version(match["version"]),
        None if label is None else unquote(label),
    )


def error_body(message: str) -> bytes:
    """Return TensorFlow Serving's error object."""
    # A text that quotes the request may contain invalid UTF-8.
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def _action(method: str, word: str | None) -> ServingAction | None:
    match (method, word):
        case ("POST", "predict" | "classify" | "regress"):
            return ServingAction(word)
        case ("GET", "metadata"):
            return ServingAction.METADATA
        case ("GET", _):
            return ServingAction.STATUS
    return None


def _version(digits: str | None) -> int | None:
    if digits is None:
        return None
    version = versions.number(digits)
    if version is None:
        raise RequestError(f"Failed to convert version: {digits} to numeric.")
    return version

"""Classifies model servers' answers: kept promise, client's fault, failure or server error.

The statuses that eject are those of Envoy's `consecutive_gateway_failure`: 502, 503 and 504, and
requests that got no answer. Any other server error with an error object in it comes from a server
that works: it breaks the promise, and tells more about the request than about the executor. A
server error without an error object means that a handler crashed.
"""

from typing import Final

import orjson

from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.http.messages import Response
from roma.domain.events import Result

INPUT_FAULTS: Final = (
    "Unable to parse ",
    "Unable to set '",
    "failed to parse the request JSON buffer: ",
    "attempt to access JSON ",
)
"""Prefixes of messages about the client's input that come with status 500. All are Triton's
(src/http_server.cc and common's triton_json.h, 26.08): a JSON value of the wrong type is an
INTERNAL error there, which HttpCodeFromError makes a 500; its own tests expect it
(qa/L0_http/http_test.py)."""

MAX_ERROR: Final = 65_536
"""Bytes of a body that are searched for an error object."""

_GATEWAY_ERRORS: Final = frozenset({502, 503, 504})
_OVERLOAD: Final = frozenset({408, 429})

_GIVEN_UP: Final = frozenset({408, 503, 504})
_GIVEN_UP_CODES: Final = frozenset({1, 4, 14})
"""CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE, which Triton answers at a request's own timeout."""

_INPUT_CODES: Final = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
"""gRPC statuses that a retry of the same call would get again: INVALID_ARGUMENT, NOT_FOUND,
ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED,
UNAUTHENTICATED. The others concern the server or the moment."""

RESOURCE_EXHAUSTED: Final = 8
TOO_LARGE: Final = "eceived message larger than max"
"""Part of gRPC's own text with that status: the end that has the bound puts its name before it, in
some versions. From a server it is the client's request, as 413 is in HTTP."""

_GATEWAY_CODES: Final = frozenset({4, 14})
"""DEADLINE_EXCEEDED and UNAVAILABLE, gRPC's 504 and 503."""


def judge(answer: Response) -> Result:
    """Return the verdict on a model server's HTTP answer."""
    status = answer.status
    if status < 400:
        return Result.OK
    if status in _OVERLOAD:  # the server's fault, not the client's
        return Result.FAILURE
    # 501: the client asks for something that this model cannot do, like gRPC's UNIMPLEMENTED.
    if status < 500 or status == 501:
        return Result.INVALID
    if status in _GATEWAY_ERRORS:
        return Result.ERROR
    text = _error_text(answer)
    if text is None:
        return Result.ERROR
    return Result.INVALID if text.startswith(INPUT_FAULTS) else Result.FAILURE


def judge_grpc(code: int, message: str) -> Result:
    """Return the verdict on a gRPC status, which always comes from a server that works."""
    if code == 0:
        return Result.OK
    if code in _INPUT_CODES or (code == RESOURCE_EXHAUSTED and TOO_LARGE in message):
        return Result.INVALID
    return Result.ERROR if code in _GATEWAY_CODES else Result.FAILURE


def gave_up(answer: Response | GrpcResponse) -> bool:
    """Return True if a fault can mean that the server kept a deadline: it is no longer computing.

    A handler that crashes answers another status, however late.
    """
    if isinstance(answer, Response):
        return answer.status in _GIVEN_UP
    return answer.code in _GIVEN_UP_CODES


def _error_text(answer: Response) -> str | None:
    """Return the text of an error object, `{"error": "…"}` in all protocols; None without one."""
    if answer.content_encoding or len(answer.body) > MAX_ERROR:
        return None
    try:
        document = orjson.loads(answer.body)
    except ValueError:
        return None
    text = document.get("error") if isinstance(document, dict) else None
    return text if isinstance(text, str) and text else None

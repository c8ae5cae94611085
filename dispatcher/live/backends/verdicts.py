"""Classifies model servers' answers: kept promise, client's fault, failure or server error.

The statuses that eject are those of Envoy's `consecutive_gateway_failure`: 502, 503 and 504, and
what never came to an answer. Any other server error with an error object in it comes from a server
that works: it breaks the promise, and says more about a request than about who computed it. One
without is what a handler leaves that fell over.
"""

from typing import Final

import orjson

from dispatcher.live.http.messages import Response
from roma.domain.events import Result

INPUT_FAULTS: Final = (
    "Unable to parse ",
    "Unable to set '",
    "failed to parse the request JSON buffer: ",
    "attempt to access JSON ",
)
"""Beginnings of what servers say of the client's input with status 500. All are Triton's
(src/http_server.cc and common's triton_json.h, 26.08): a JSON value of the wrong type is an
INTERNAL error there, which HttpCodeFromError makes a 500; its own tests ask for it
(qa/L0_http/http_test.py)."""

MAX_ERROR: Final = 65_536
"""Bytes of a body that is read for an error object."""

_GATEWAY_ERRORS: Final = frozenset({502, 503, 504})
_OVERLOAD: Final = frozenset({408, 429})

_INPUT_CODES: Final = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
"""gRPC statuses that the same call would meet again: INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAUTHENTICATED. The others
speak of the server or of the moment."""

_GATEWAY_CODES: Final = frozenset({4, 14})
"""DEADLINE_EXCEEDED and UNAVAILABLE, gRPC's 504 and 503."""


def judge(answer: Response) -> Result:
    """Return what a model server's HTTP answer says."""
    status = answer.status
    if status < 400:
        return Result.OK
    if status in _OVERLOAD:  # the server's, not the client's fault
        return Result.FAILURE
    # 501 is what the client asks for and this model cannot do, as gRPC's UNIMPLEMENTED.
    if status < 500 or status == 501:
        return Result.INVALID
    if status in _GATEWAY_ERRORS:
        return Result.ERROR
    text = _error_text(answer)
    if text is None:
        return Result.ERROR
    return Result.INVALID if text.startswith(INPUT_FAULTS) else Result.FAILURE


def judge_grpc(code: int) -> Result:
    """Return the same of a gRPC status, which always comes from a server that works."""
    if code == 0:
        return Result.OK
    if code in _INPUT_CODES:
        return Result.INVALID
    return Result.ERROR if code in _GATEWAY_CODES else Result.FAILURE


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

"""gRPC responses: the dispatcher's outcomes and the front end's refusals as statuses."""

from typing import Any, assert_never

import grpc

from dispatcher.live.backends.backend_address import GrpcResponse, Metadata
from dispatcher.live.context import REQUEST_ID, Context
from dispatcher.live.driver import Outcome
from dispatcher.live.http.messages import Response
from roma.domain import units
from roma.domain.events import Fail, Reason, Reject

MAX_TEXT = 1024
"""Most bytes of an error's text. It is sent in a header, where a byte may take three, and clients
refuse headers of more than 8 KiB."""

_CODES = {status.value[0]: status for status in grpc.StatusCode}
_Code = grpc.StatusCode

_REJECTED = {
    Reason.QUEUE_FULL: _Code.RESOURCE_EXHAUSTED,
    Reason.PREDICTED_LATE: _Code.RESOURCE_EXHAUSTED,
    Reason.DEADLINE: _Code.DEADLINE_EXCEEDED,
    Reason.NO_EXECUTABLE: _Code.UNAVAILABLE,
    Reason.TOO_LARGE: _Code.RESOURCE_EXHAUSTED,  # like gRPC itself for a message
}


class RefusedCall(Exception):
    """A call that is refused; `retry_after` is in seconds."""

    def __init__(
        self, code: grpc.StatusCode, text: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.answer = refusal(code, text, retry_after=retry_after)


def bad_request(text: str) -> RefusedCall:
    """Return the refusal of a request that the client must change."""
    return RefusedCall(_Code.INVALID_ARGUMENT, text)


def refusal(code: grpc.StatusCode, text: str, *, retry_after: float | None = None) -> GrpcResponse:
    """Return an error."""
    trailing: Metadata = ()
    if retry_after is not None:
        trailing = (("retry-after", str(units.retry_after_s(retry_after))),)
    return GrpcResponse(code.value[0], b"", text, trailing)


def outcome_answer(outcome: Outcome) -> GrpcResponse:
    """Return the answer to a client for an outcome."""
    match outcome:
        case GrpcResponse():
            return outcome
        case Response():
            raise AssertionError("an answer to a call of another protocol")
        case Reject(_, reason, retry_after, detail):
            return refusal(_REJECTED[reason], detail, retry_after=retry_after)
        case Fail(_, detail):
            return refusal(_Code.INTERNAL, detail)
        case _:
            assert_never(outcome)


async def respond(context: Any, answer: GrpcResponse, carried: Context | None = None) -> bytes:
    """Return an answer's message after setting its metadata; an error ends the call here.

    `context` is a grpc.aio.ServicerContext; the request id in `carried` is returned to the client.
    """
    trailing = answer.trailing
    if carried is not None and carried.request_id is not None:
        trailing = (*trailing, (REQUEST_ID.lower(), carried.request_id))
    if answer.code:
        code = _CODES.get(answer.code, _Code.UNKNOWN)
        # gRPC never ends a call whose text is not UTF-8, which a caller's name need not be.
        text = answer.message.encode("utf-8", "replace")[:MAX_TEXT].decode("utf-8", "ignore")
        await context.abort(code, text, trailing)
    if trailing:
        context.set_trailing_metadata(trailing)
    return answer.body

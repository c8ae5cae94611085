"""Log lines about requests: none for an answered one, few for many that were not answered.

A flood of failures must neither fill a disk nor block the loop: of similar lines, one per second is
written, with the number of those left out.
"""

import asyncio
import logging
from typing import Literal, assert_never

from dispatcher.live.backends.backend_address import GrpcResponse
from dispatcher.live.backends.verdicts import judge, judge_grpc
from dispatcher.live.driver import Call, Outcome
from dispatcher.live.http.messages import Response
from dispatcher.state.tickets import is_error
from roma.domain.events import Fail, Reject
from roma.telemetry.logs import RateLimitedLogger

log = logging.getLogger(__name__)

Requests = Literal["none", "failed", "all"]


class RequestLog:
    """The request log; `requests` selects the requests to log."""

    def __init__(self, requests: Requests, loop: asyncio.AbstractEventLoop) -> None:
        self.writes_all = requests == "all"
        self._writes_none = requests == "none"
        self._limited = RateLimitedLogger(log, loop)

    def on_outcome(self, call: Call, outcome: Outcome, response_time: float) -> None:
        """Log how a request ended."""
        word, reason = verdict(outcome)
        if self._writes_none or (word == "answered" and not self.writes_all):
            return
        detail, status = "", None
        match outcome:
            case Response():
                status = outcome.status
            case GrpcResponse():
                status = outcome.code
            case _:
                detail = f": {outcome.detail}"
        self._write(call, word, reason, response_time, detail=detail, status=status)

    def on_cancelled(self, call: Call, response_time: float) -> None:
        """Log that a client went away: no fault, so only if all requests are logged."""
        if self.writes_all:
            self._write(call, "cancelled", None, response_time)

    def close(self) -> None:
        """Write the numbers of lines left out so far."""
        self._limited.close()

    def _write(
        self,
        call: Call,
        outcome: str,
        reason: str | None,
        response_time: float,
        *,
        detail: str = "",
        status: int | None = None,
    ) -> None:
        context = call.context
        request_id = (context and context.request_id) or str(call.id)
        fields = {
            "request_id": request_id,
            "trace_id": context and context.trace_id,
            "model": call.model,
            "executable": call.executor,
            "outcome": outcome,
            "reason": reason,
            "response_time": response_time,
            "status": status,
        }
        what = f"{outcome} ({reason})" if reason else outcome
        message = "request %s of model %s: %s after %.3f s%s"
        args = (request_id, call.model, what, response_time, detail)
        level = logging.WARNING if outcome in ("failed", "rejected") else logging.INFO
        if self.writes_all:
            log.log(level, message, *args, extra=fields)
        else:
            self._limited.log(f"model {call.model}: {what}", level, message, *args, fields=fields)


def verdict(outcome: Outcome) -> tuple[str, str | None]:
    """Return how a request ended (answered, failed, rejected), and why if it was not answered."""
    match outcome:
        case Response(status):
            failed = is_error(judge(outcome))
            return ("failed", f"status_{status}") if failed else ("answered", None)
        case GrpcResponse(code, message=message):
            failed = is_error(judge_grpc(code, message))
            return ("failed", f"grpc_{code}") if failed else ("answered", None)
        case Reject(_, reason):
            return "rejected", reason.value
        case Fail():
            return "failed", "executable_failed"
        case _:
            assert_never(outcome)

"""A request's context: its request id and its trace.

A client's `traceparent` and `tracestate` (W3C Trace Context, level 1) go to the model server
unchanged; none is invented here. Invalid values are dropped, as the specification requires: they
reach neither a model server nor a log. A request without any of them costs two look-ups.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from dispatcher.live.backends.backend_address import Answer
from dispatcher.live.http.routes import GrpcRoute, Route
from roma.domain.errors import BackendError
from roma.domain.events import Fail, Reject

REQUEST_ID = "X-Request-Id"

AnyRoute = Route | GrpcRoute

MAX_STATE = 512
"""Characters of a `tracestate` that are passed on (W3C §3.3.1.5 asks for at least these)."""

MAX_MEMBER = 128
"""Length from which list members of a `tracestate` are dropped first when it is too long (same
section)."""

MAX_MEMBERS = 32
"""List members that a `tracestate` may have (W3C §3.3.1.1)."""

# Two, since one for all versions takes twice as long, for each request that has a trace.
_USUAL_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Version 00 ends after the flags; later ones may go on after another dash. 512 as for `MAX_STATE`.
_LATER_PARENT = re.compile(
    r"(?!ff|00)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,512})?"
)
_ID = re.compile(r"[!-~]{1,128}")
_STATE = re.compile(r"[\t -~]+")


class Trace(Protocol):
    """The spans of one request; every `now` is the driver's clock. A late call does no harm."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    def on_queued(self, now: float, *, sla: float) -> None:
        """Note that the dispatcher has queued the request."""

    def on_executing(
        self, executable: str, device: str, address: tuple[str, int | None], now: float
    ) -> Mapping[str, str]:
        """Begin an execution's span; return the headers that make it the model server's parent."""

    def on_executed(self, result: Answer | BackendError, now: float) -> None:
        """End an execution's span; after `BackendUnreachable` the request waits again."""

    def on_outcome(
        self, outcome: Answer | Reject | Fail, response_time: float, executable: str | None
    ) -> None:
        """Record the dispatcher's outcome; `executable` ran the request last."""

    def end(self, status: int | None, now: float) -> None:
        """End with the client's `status`, of its protocol; None: the client went away."""


class Tracer(Protocol):
    """Creates traces."""

    def begin(self, context: "Context", route: AnyRoute, now: float) -> Trace:
        """Begin the trace of a request, or continue the one that it is part of."""


class Context:
    """Context of one request: its `request_id`, if it has one, and its trace."""

    __slots__ = ("request_id", "trace", "traceparent", "tracestate")

    def __init__(
        self,
        request_id: str | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.traceparent = traceparent
        self.tracestate = tracestate
        self.trace: Trace | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace id, if there is a trace."""
        if self.trace is not None:
            return self.trace.trace_id
        return None if self.traceparent is None else self.traceparent[3:35]

    @property
    def lines(self) -> str:
        """The context as header lines for the model server."""
        lines = f"traceparent: {self.traceparent}\r\n" if self.traceparent else ""
        if self.tracestate:
            lines += f"tracestate: {self.tracestate}\r\n"
        return f"{lines}{REQUEST_ID}: {self.request_id}\r\n" if self.request_id else lines

    def lines_with(self, trace: Mapping[str, str]) -> str:
        """Return the header lines for the model server with `trace` in place of the trace's own."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in trace.items())
        return f"{lines}{REQUEST_ID}: {self.request_id}\r\n" if self.request_id else lines


def carried(
    request_id: str | None, traceparent: str | None, tracestate: str | None
) -> Context | None:
    """Return the context in these headers, or None if it is empty.

    Fields of one name are one list (RFC 9110 §5.3). So two parents count as none: it is unknown
    which of them is meant.
    """
    if request_id is not None and not _ID.fullmatch(request_id):
        request_id = None
    if traceparent is None or not is_parent(traceparent):
        return None if request_id is None else Context(request_id)
    return Context(request_id, traceparent, None if tracestate is None else state(tracestate))


def is_parent(text: str) -> bool:
    """Return True if a `traceparent` is valid (W3C §3.2)."""
    return bool(_USUAL_PARENT.fullmatch(text)) or bool(_LATER_PARENT.fullmatch(text))


def state(text: str) -> str | None:
    """Return the part of a `tracestate` to pass on: the first whole members, or nothing."""
    if not _STATE.fullmatch(text):
        return None
    members = text.split(",")
    if len(text) <= MAX_STATE and len(members) <= MAX_MEMBERS:
        return text
    if len(text) > MAX_STATE:
        members = [member for member in members if len(member.strip()) <= MAX_MEMBER]
    members = members[:MAX_MEMBERS]
    while len(",".join(members)) > MAX_STATE:
        members.pop()
    return ",".join(members) or None

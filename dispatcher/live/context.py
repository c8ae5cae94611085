"""What a request brings along beside its body: its number, and the trace that it is part of.

A client's `traceparent` and `tracestate` (W3C Trace Context, level 1) go to the model server as
they came; nothing is made up here. What is not valid is dropped, as the specification says: it
reaches neither a model server nor a log. A request that brings nothing costs two look-ups.
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
"""Longer list members of a `tracestate` go first when it is too long (same section)."""

MAX_MEMBERS = 32
"""List members that a `tracestate` may have (W3C §3.3.1.1)."""

# Version 00 ends after the flags; a later one may go on after another dash. 512: as for the state.
_PARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})"
    r"-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-[!-~]{0,512})?"
)
_ID = re.compile(r"[!-~]{1,128}")
_STATE = re.compile(r"[\t -~]+")


class Trace(Protocol):
    """The spans of one request; every `now` is the driver's clock. A late call does no harm."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    def on_queued(self, now: float, *, sla: float) -> None:
        """The dispatcher has it."""

    def on_executing(
        self, executable: str, device: str, address: tuple[str, int | None], now: float
    ) -> Mapping[str, str]:
        """An execution begins; return the headers by which the model server knows its parent."""

    def on_executed(self, result: Answer | BackendError, now: float) -> None:
        """An execution ended; after `BackendUnreachable` the request waits again."""

    def on_outcome(
        self, outcome: Answer | Reject | Fail, response_time: float, executable: str | None
    ) -> None:
        """The dispatcher has decided; `executable` had it last."""

    def end(self, status: int | None, now: float) -> None:
        """The client is told `status`, of its protocol; None: it went away."""


class Tracer(Protocol):
    """Makes traces."""

    def begin(self, context: "Context", route: AnyRoute, now: float) -> Trace:
        """Begin the trace of a request, or take up the one that it is part of."""


class Context:
    """One request's: its `request_id`, where it has one, and its place in a trace."""

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
        """The trace's number, where there is a trace."""
        if self.trace is not None:
            return self.trace.trace_id
        return None if self.traceparent is None else self.traceparent[3:35]

    @property
    def lines(self) -> str:
        """As header lines for the model server."""
        own = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return self.lines_with({k: v for k, v in own.items() if v is not None})

    def lines_with(self, trace: Mapping[str, str]) -> str:
        """As header lines for the model server, with these in place of the trace's own."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in trace.items())
        return f"{lines}{REQUEST_ID}: {self.request_id}\r\n" if self.request_id else lines


def carried(
    request_id: str | None, traceparent: str | None, tracestate: str | None
) -> Context | None:
    """Return what these headers bring along, or None if that is nothing.

    Fields of one name are one list (RFC 9110 §5.3). So two parents are none: which of them is
    meant, nobody can know.
    """
    if request_id is not None and not _ID.fullmatch(request_id):
        request_id = None
    if traceparent is None or not is_parent(traceparent):
        return None if request_id is None else Context(request_id)
    return Context(request_id, traceparent, state(tracestate or ""))


def is_parent(text: str) -> bool:
    """Return whether a `traceparent` is valid (W3C §3.2)."""
    match = _PARENT.fullmatch(text)
    return match is not None and (match["version"] != "00" or match["more"] is None)


def state(text: str) -> str | None:
    """Return a `tracestate` as it may be passed on: whole members, the first ones, or nothing."""
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

"""Outcomes of requests, as the load generator counts them.

Every request that was sent ends in exactly one outcome. Times are seconds after the start of the
run.
"""

from dataclasses import dataclass
from enum import StrEnum


class RequestEnd(StrEnum):
    """The four ends of a request."""

    ANSWERED = "answered"
    """A 2xx answer, read to its end."""

    REJECTED = "rejected"
    """The service declined: 429 (queue full), 503 (nothing runs it) or 504 (too late)."""

    INVALID = "invalid"
    """Any other 4xx: the request itself was wrong."""

    FAILED = "failed"
    """Any other status, a broken connection, a timeout, or a limit of the generator."""


CLIENT_LIMIT = "client limit"
CANCELLED = "cancelled"
TIMEOUT = "timeout"

REJECTIONS = frozenset({429, 503, 504})


def outcome_of(status: int) -> RequestEnd:
    """Return the outcome that an HTTP status stands for."""
    if 200 <= status < 300:
        return RequestEnd.ANSWERED
    if status in REJECTIONS:
        return RequestEnd.REJECTED
    if 400 <= status < 500:
        return RequestEnd.INVALID
    return RequestEnd.FAILED


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer, whatever its status."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The end of one request.

    `index` counts the requests of its stream from 0. `sent` is None for a request that never left
    the generator. `status` is None where there was no HTTP answer; `reason` then says why.
    """

    model: str
    index: int
    outcome: RequestEnd
    intended: float
    sent: float | None
    done: float
    status: int | None = None
    reason: str | None = None
    answer: bytes = b""

    @property
    def response_time(self) -> float:
        """Seconds from the *intended* send, so that waiting in a late generator counts too.

        Measuring from the actual send would hide exactly the requests that a stall delayed
        (coordinated omission).
        """
        return self.done - self.intended

    @property
    def lag(self) -> float | None:
        """Lateness of the generator itself, in seconds; None if the request never left it.

        An idle machine shows up to 1 ms, the resolution of an event loop's timers.
        """
        return None if self.sent is None else self.sent - self.intended


@dataclass(frozen=True, slots=True)
class Progress:
    """A run `elapsed` seconds after its start: requests that were sent, and some by their ends."""

    elapsed: float
    sent: int
    answered: int
    rejected: int
    failed: int

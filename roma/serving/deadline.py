"""The time that a caller has left, as a gateway tells it beside a request."""

from collections.abc import Mapping

from roma.serving.errors import RequestError

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
"""Milliseconds after which a request that still waits for a worker need not be computed."""

MAX_TIMEOUT_MS = 2**31 - 1
"""25 days: a larger number is refused, and a caller without a limit sends none."""


def seconds_left(headers: Mapping[str, str]) -> float | None:
    """Return a caller's remaining seconds, None if it has no deadline; raises RequestError."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    # The length is checked first: Python refuses to convert thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    if not is_number or not 1 <= int(text) <= MAX_TIMEOUT_MS:
        raise RequestError(
            f"{TIMEOUT_HEADER} = {text[:32]!r}: expected milliseconds, "
            f"an integer from 1 to {MAX_TIMEOUT_MS}"
        )
    return int(text) / 1000

"""Remaining time of a caller, as a gateway sends it with a request."""

from collections.abc import Mapping

from roma.serving.errors import RequestError

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
"""Header with the milliseconds after which a request still waiting for a thread is dropped."""

MAX_TIMEOUT_MS = 2**31 - 1
"""Largest timeout, 25 days: a larger number is refused; without a limit the header is absent."""


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

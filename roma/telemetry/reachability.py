"""Reasons why a call to another program brought no answer, in a few words without addresses."""

import errno
import os

_OF_THE_WAY = {
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENOENT,
    errno.EPIPE,
}
"""Errors that their number says all about; others (TLS, names) have numbers of their own."""


def reason(error: BaseException) -> str:
    """Return why, e.g. `connection refused`; of an aiohttp error what the system said."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.errno in _OF_THE_WAY and not hasattr(inner, "reason"):
        return os.strerror(inner.errno or 0).lower()
    return str(inner) or type(inner).__name__

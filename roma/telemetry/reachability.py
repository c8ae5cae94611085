"""Reasons why another program gave no answer or a port cannot be opened, without addresses."""

import errno
import os

from roma.domain.errors import in_words

_OF_THE_WAY = {
    errno.EACCES,
    errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENOENT,
    errno.EPIPE,
}
"""Error numbers that describe the error fully; TLS and name errors have their own numbers."""


def reason(error: BaseException) -> str:
    """Return the reason, e.g. `connection refused`; for an aiohttp error, the system's reason."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.errno in _OF_THE_WAY and not hasattr(inner, "reason"):
        return os.strerror(inner.errno or 0).lower()
    return in_words(inner) or type(inner).__name__

"""Connections that cannot be accepted because descriptors or memory ran out: a line a minute.

asyncio tries again after a second, once for each connection that may wait, and logs a traceback for
each try that fails: a thousand a second, for as long as it lasts. Tries for a listener that has
been closed meanwhile fail with a traceback each, too. (uvloop closes such a connection instead, and
says nothing.)
"""

import asyncio
import errno
import logging
import math
from typing import Any, Final

EVERY: Final = 60.0
"""Seconds between two lines."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors after which asyncio tries again to accept."""

_RETRY: Final = "._start_serving("
"""In the message of a fault of such a try."""

log = logging.getLogger(__name__)


def report_exhaustion(loop: asyncio.AbstractEventLoop) -> None:
    """Log once in EVERY seconds that connections cannot be accepted; other faults stay as loud."""
    due = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal due
        error = context.get("exception")
        if isinstance(error, ValueError) and _RETRY in context.get("message", ""):
            return  # its listener is closed
        if (
            "socket" not in context
            or not isinstance(error, OSError)
            or error.errno not in _EXHAUSTED
        ):
            loop.default_exception_handler(context)
        elif loop.time() >= due:
            due = loop.time() + EVERY
            reason = (error.strerror or str(error)).lower()
            text = "connections cannot be accepted (%s): trying again every second (ulimit -n)"
            log.error(text, reason)

    loop.set_exception_handler(handle)

"""Wall-clock times and time ranges of the decision log, for dispatcher and supervisor.

The cores use a monotonic clock; people ask what happened at ten past nine.
"""

import math
import time
from collections.abc import Callable, Mapping

from roma.domain.errors import DecisionLogError

LONGEST = 900.0
"""Longest time range in seconds: the last 15 minutes."""

SECONDS = 60.0
"""Default time range in seconds."""


def seconds_of(query: Mapping[str, str]) -> float:
    """Return the time range of a query in seconds; raise `DecisionLogError` naming the fault."""
    text = query.get("seconds", str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise DecisionLogError(f"seconds = {text}: must be a number in (0, {LONGEST:g}]")
    return seconds


def wall_clock(now: float) -> Callable[[float], float]:
    """Return a function from times of the clock that reads `now` to seconds since the epoch."""
    offset = time.time() - now
    return lambda at: round(at + offset, 3)

"""What the two halves of ROMA share when they tell their stories: how long, and when it was.

Cores count time on a clock that only goes forward; people ask what happened at ten past nine.
"""

import math
import time
from collections.abc import Callable, Mapping

from roma.domain.errors import StoryError

LONGEST = 900.0
"""Seconds that a story goes back: the last 15 minutes."""

SECONDS = 60.0
"""How far back it goes unless asked."""


def seconds_of(query: Mapping[str, str]) -> float:
    """Return the seconds that a query asks for; raise `StoryError` naming what is wrong."""
    text = query.get("seconds", str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise StoryError(f"seconds = {text}: must be a number in (0, {LONGEST:g}]")
    return seconds


def wall_clock(now: float) -> Callable[[float], float]:
    """Return what turns times of the clock that says `now` into seconds since the epoch."""
    offset = time.time() - now
    return lambda at: round(at + offset, 3)

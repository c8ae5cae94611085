"""Formatting of times: UTC for real runs, minutes and seconds for simulated ones."""

from datetime import UTC, datetime

import numpy as np

from roma.ui.report.columns import Span

STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Possible distances between two marks of a time axis, in seconds."""

MARKS = 9


class Clock:
    """Formatter of the times of one run; a `virtual` run began at 0."""

    def __init__(self, whole: Span, *, virtual: bool) -> None:
        self._whole = whole
        self._virtual = virtual

    def time(self, at: float) -> str:
        """Return a time of day, or minutes and seconds since the beginning."""
        if self._virtual:
            minutes, seconds = divmod(round(at), 60)
            return f"{minutes}:{seconds:02}"
        form = "%Y-%m-%d %H:%M" if self._days > 366 else "%m-%d %H:%M:%S"
        return self._utc(at).strftime("%H:%M:%S" if self._days == 1 else form)

    def between(self, span: Span) -> str:
        """Return a time span as text."""
        return f"{self.time(span.start)} to {self.time(span.end)}"

    def whole(self) -> str:
        """Return the time span of the run as text."""
        start, end = self._whole.start, self._whole.end
        if self._virtual:
            return f"virtual time {self.between(self._whole)} (minutes:seconds)"
        first, last = self._utc(start), self._utc(end)
        until = f"{last:%H:%M:%S}" if self._days == 1 else f"{last:%Y-%m-%d %H:%M:%S}"
        return f"{first:%Y-%m-%d %H:%M:%S} to {until} UTC"

    def marks(self) -> list[float]:
        """Return the positions of the marks on a time axis."""
        seconds = self._whole.seconds
        # A clock that was set makes a run of years: its marks must not become thousands.
        days = STEPS[-1] * np.ceil(seconds / MARKS / STEPS[-1])
        step = next((s for s in STEPS if seconds / s <= MARKS), days)
        first = np.ceil(self._whole.start / step) * step
        return [float(t) for t in np.arange(first, self._whole.end + 0.001, step)]

    @property
    def axis(self) -> str:
        """The label of a time axis."""
        return "minutes:seconds" if self._virtual else "UTC"

    @property
    def _days(self) -> int:
        return 1 + (self._utc(self._whole.end).date() - self._utc(self._whole.start).date()).days

    @staticmethod
    def _utc(at: float) -> datetime:
        return datetime.fromtimestamp(at, UTC)


def duration(seconds: float) -> str:
    """Return a duration as text."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == whole else f"{seconds:.1f} s"


def milliseconds(seconds: float | None) -> str:
    """Return a response time as text."""
    if seconds is None:
        return "–"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:.0f} ms"

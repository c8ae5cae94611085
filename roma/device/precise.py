"""Precise wake-ups: an event loop's own timers have a resolution of a millisecond.

epoll_wait(2) and libuv's timers count in milliseconds; a window of a millisecond needs more
precision. A timer file descriptor, timerfd_create(2), wakes the same loop some tens of microseconds
after its time, without a busy-waiting thread.
"""

import asyncio
import ctypes
import math
import os
import time
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = 1  # also what time.monotonic() reads
_TFD_TIMER_ABSTIME = 1
_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Alarm that calls back on the loop at a point of `time.monotonic()`, once per `set`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._file = -1
        self._when: float | None = None

    def start(self) -> None:
        """Open the timer, on the running loop; raises OSError."""
        self._file = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._file, self._on_time)

    def set(self, when: float | None) -> None:
        """Call back at `when`, or immediately if that has passed; None cancels the alarm."""
        if when == self._when or self._file < 0:
            return
        self._when = when
        value = _Timespec(0, 0)  # disarms
        if when is not None:
            # A time in the past fires immediately, but zero would disarm the timer.
            seconds, nanoseconds = divmod(max(1, math.ceil(when * 1e9)), 10**9)
            value = _Timespec(seconds, nanoseconds)
        spec = _Itimerspec(_Timespec(0, 0), value)
        if _libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def stop(self) -> None:
        """Close the timer."""
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _on_time(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew between its firing and this call
            return
        self._when = None
        self._callback()


def tighten() -> None:
    """Reduce this thread's timer slack, by which Linux may delay sleeps by 50 µs; prctl(2)."""
    _libc.prctl(_PR_SET_TIMERSLACK, _SLACK_NS)


def sleep_until(when: float) -> None:
    """Sleep until a point of `time.monotonic()`."""
    while (left := when - time.monotonic()) > 0:
        time.sleep(left)

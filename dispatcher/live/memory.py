"""Returns free memory that glibc keeps after a peak to the system.

A freed block of up to 32 MiB makes glibc allocate such blocks from its heap (mallopt(3),
M_MMAP_THRESHOLD), which only shrinks at its end: after thirty answers of 32 MiB a process keeps
hundreds of them for good. Fixed thresholds in the environment would cost every large body its page
faults, so this module checks periodically instead. Without glibc it does nothing.
"""

import ctypes
from typing import Any

KEPT = 64 * 2**20
"""Growth of free memory, in bytes, that is left to glibc."""


_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


class FreeMemory:
    """Free memory of this process; `release` it periodically, from one thread at a time."""

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        self._info = getattr(libc, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Mallinfo2
        self._before = 0

    @property
    def size(self) -> int:
        """Bytes that are free within the heap, whether they were returned to the system or not."""
        return 0 if self._info is None else int(self._info().fordblks)

    def release(self) -> bool:
        """Return free memory if it has grown much; return True if it was done."""
        if self._trim is None or self._info is None:
            return False
        size = self.size
        if size <= self._before + KEPT:
            self._before = min(self._before, size)
            return False
        self._trim(0)
        self._before = self.size
        return True

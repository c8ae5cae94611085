"""Readings of a host's CPUs and of how long tasks wait for them: proc(5), the kernel's PSI.

A container engine's host other than this one cannot be read here.
"""

import os
from pathlib import Path

from supervisor.cgroups import pressure
from supervisor.contention import HostReading

PROC = Path("/proc")

_TICK = os.sysconf("SC_CLK_TCK")

_IDLE, _IOWAIT, _STEAL, _GUEST = 3, 4, 7, 8
"""Columns of `cpu` in /proc/stat. Guests' time is already in `user` and `nice`."""


def read_host(proc: Path = PROC) -> HostReading | None:
    """Return the host's present reading; None without a usable /proc/stat."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        ticks = [int(number) for number in lines[0].split()[1 : _GUEST + 1]]
    except (OSError, ValueError, IndexError):
        return None
    cpus = sum(1 for line in lines if line.startswith("cpu")) - 1
    if cpus < 1 or len(ticks) <= _STEAL or not any(ticks):
        return None
    busy = sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT] - ticks[_STEAL]
    waited = pressure(proc / "pressure" / "cpu")
    return HostReading(cpus, busy / _TICK, ticks[_STEAL] / _TICK, waited)

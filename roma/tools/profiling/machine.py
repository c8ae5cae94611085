"""The machine under measurement."""

import contextlib
import os
import platform
from pathlib import Path

from roma.domain.errors import ActuationError
from supervisor.cgroups import find_hierarchy


def available_cores() -> float:
    """Return the cores that this process may use: by affinity and by quota."""
    available = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(ActuationError):
        available = min(available, find_hierarchy().limit() or available)
    return available


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's name, or its architecture where the kernel gives no name (Arm)."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.machine() or "unknown"


def busy_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Return the core-seconds that the whole machine has been busy since it started; proc(5)."""
    ticks = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")

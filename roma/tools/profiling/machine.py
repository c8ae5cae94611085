"""The machine under measurement."""

import contextlib
import os
import platform
from pathlib import Path

from roma.domain.errors import ActuationError
from supervisor.actuators.host import PROC, read_host
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


def busy_seconds(proc: Path = PROC) -> float:
    """Return the core-seconds that the machine has been busy since it started; 0 if unknown."""
    host = read_host(proc)
    return 0.0 if host is None else host.busy + host.stolen

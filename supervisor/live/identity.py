"""Identity of this supervisor's process towards dispatchers; check if another's still runs."""

import os
import socket
from functools import cache
from pathlib import Path

from roma.domain.exchange import SupervisorId


@cache
def own() -> SupervisorId:
    """Return this process' identity."""
    pid = os.getpid()
    return SupervisorId(socket.gethostname(), pid, f"{_here()}/{_started(pid)}")


def is_gone(other: SupervisorId) -> bool:
    """Return True if this machine can prove that the process has ended.

    False where it may run on another machine, or in another PID namespace.
    """
    place, _, started = other.started.rpartition("/")
    return place == _here() and _started(other.pid) != started


def _here() -> str:
    """Return an identifier of this boot and PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(pid: int) -> str | None:
    """Return a process' start in clock ticks since boot; None if it has ended (proc(5))."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]

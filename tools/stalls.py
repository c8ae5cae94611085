#!/usr/bin/env python3
"""Run a command while all CPUs stall at random: a test that fails then depends on time.

`tools/stalls.py SEED COMMAND …`. A real-time process on each CPU computes for 0.1 to 1.5 s at a
time, a quarter of all time. Needs the right to real-time priorities (root).
"""

import os
import random
import signal
import subprocess
import sys
import time

SHARE = 0.25
SHORTEST, LONGEST = 0.1, 1.5


def stall(cpu: int, seed: int, start: float) -> None:
    """Compute on a CPU now and then, at the same moments as on the others; end with the parent."""
    os.sched_setaffinity(0, {cpu})
    source, at, parent = random.Random(seed), start, os.getppid()
    gap = (1 / SHARE - 1) * (SHORTEST + LONGEST) / 2
    while os.getppid() == parent:
        at += source.expovariate(1 / gap)
        time.sleep(max(0.0, at - time.monotonic()))
        at += source.uniform(SHORTEST, LONGEST)
        while time.monotonic() < at:
            pass


def main() -> int:
    """Return the command's exit status."""
    seed, start, stalling = int(sys.argv[1]), time.monotonic(), []
    try:
        for cpu in os.sched_getaffinity(0):
            process = os.fork()
            if process == 0:
                stall(cpu, seed, start)
                os._exit(0)
            stalling.append(process)
            os.sched_setscheduler(process, os.SCHED_FIFO, os.sched_param(1))
        return subprocess.run(sys.argv[2:], check=False).returncode
    finally:
        for process in stalling:
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

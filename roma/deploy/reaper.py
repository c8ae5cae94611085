"""Removes cgroups once the launcher has exited, for any reason: `python -m roma.deploy.reaper`.

It waits for the end of its standard input, which the kernel closes when the launcher exits or is
killed. Then it kills the remaining processes in the groups and removes the groups.
"""

import signal
import sys

from supervisor.cgroups import find_hierarchy


def main(paths: list[str]) -> None:
    """Wait for end of file, then remove the groups at `paths` below the hierarchy."""
    # Ctrl-C and SIGTERM are for the launcher; this process ends after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hierarchy = find_hierarchy()
    sys.stdin.buffer.read()
    for path in paths:
        hierarchy.group(path, period=0.1).remove()


if __name__ == "__main__":
    main(sys.argv[1:])

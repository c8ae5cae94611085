"""Ends what a test session started, however the session ends: SIGKILL too.

The session's processes know each other by MARK in their environment. This program waits on a pipe,
whose other end the kernel closes with the session; then it kills every process with that mark, and
removes the directories, mounts, cgroups and network namespaces that it was told of.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from supervisor.cgroups import container_hierarchy

MARK = "ROMA_TEST_SESSION"
"""Of the environment; it is set before any module copies it."""

ROOT = Path(__file__).parents[2]

LIMIT = 60
"""Seconds in which all marked processes must be gone."""

REAPING = 2
"""Seconds for those that clear up themselves."""

_pipes = []
"""To the caretaker of this session, where there is one."""


def mark():
    """Mark what this process starts from now on."""
    os.environ[MARK] = uuid.uuid4().hex


@contextlib.contextmanager
def watching():
    """Have everything with this process' mark ended when the block or the process ends."""
    command = [sys.executable, "-m", "tests.support.caretaker", os.environ[MARK]]
    # In a session of its own: neither Ctrl-C nor a signal to our group reaches it.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True, text=True
    ) as caretaker:
        _pipes.append(caretaker.stdin)
        try:
            yield
        finally:
            _pipes.pop()


def expect(kind, what):
    """Tell of a `directory` of an engine, or of a `netns`: they go with the session."""
    for pipe in _pipes[-1:]:
        pipe.write(f"{kind} {what}\n")
        pipe.flush()


def sweep(directory):
    """Remove what engines with their data below a directory leave behind: containers and mounts."""
    with contextlib.suppress(Exception):  # no cgroups, or none of these
        hierarchy = container_hierarchy()
        for container in Path(directory).glob("data/containers/*"):
            hierarchy.group(f"docker/{container.name}", 0.1).remove()
    _kill_all(lambda process: os.fsencode(directory) in (process / "cmdline").read_bytes())
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([m for m in mounts if m.startswith(f"{directory}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False)


def discard(directory):
    """Remove a directory, and wait for none of it: images are a quarter of a million files."""
    gone = directory.rename(directory.with_name(f"{directory.name}.gone"))
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    subprocess.run(["setsid", "--fork", "rm", "-rf", gone], env=unmarked, check=True)


def _kill_all(is_meant):
    """Kill all processes but this one that are meant; return when they are gone."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                # A zombie has neither command line nor environment.
                if int(process.name) != os.getpid() and is_meant(process):
                    os.kill(int(process.name), signal.SIGKILL)
                    found += 1
        if not found:
            return
        time.sleep(0.05)


def main(value):
    """Wait for the end of the session, and clear up after it."""
    told = [line.rstrip("\n").partition(" ") for line in sys.stdin]
    marked = f"{MARK}={value}".encode()

    def is_marked(process):
        return marked in (process / "environ").read_bytes().split(b"\0")

    def is_reaper(process):
        return b"roma.deploy.reaper" in (process / "cmdline").read_bytes()

    # Reapers remove the cgroups of what is gone, and end by themselves.
    _kill_all(lambda process: is_marked(process) and not is_reaper(process))
    time.sleep(REAPING)
    _kill_all(is_marked)
    for kind, _, what in reversed(told):
        if kind == "directory" and Path(what).exists():
            sweep(what)
            shutil.rmtree(what, ignore_errors=True)
        elif kind == "netns" and Path("/run/netns", what).exists():
            subprocess.run(["ip", "netns", "delete", what], check=False)


if __name__ == "__main__":
    main(sys.argv[1])

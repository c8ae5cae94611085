"""Ends what a test session started, however the session ends: SIGKILL too.

The session's processes know each other by MARK in their environment. This program waits on a pipe,
whose other end the kernel closes with the session; then it kills every process with that mark, and
removes the directories, mounts, cgroups, network namespaces and links that the session's record
names. Where this program is killed as well, the next session does it: a network namespace kept by a
dead engine's mount holds addresses that the next engine's containers get.
"""

import contextlib
import fcntl
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

PREFIX = "roma-tests-"

ROOT = Path(__file__).parents[2]

LIMIT = 60
"""Seconds in which all marked processes must be gone."""

REAPING = 2
"""Most seconds for those that clear up themselves."""

RECORDS = Path("/var/tmp")
"""Each session's list of what it leaves, locked for as long as it or its caretaker lives."""

_records = []
"""This session's, while it has a caretaker."""


def mark():
    """Mark what this process starts from now on."""
    os.environ[MARK] = uuid.uuid4().hex


@contextlib.contextmanager
def watching():
    """Have everything with this process' mark ended when the block or the process ends."""
    _take_over()
    record = RECORDS / f"{PREFIX}{os.environ[MARK]}"
    with _locked(record) as lines:
        command = [sys.executable, "-m", "tests.support.caretaker", os.environ[MARK]]
        # In a session of its own: neither Ctrl-C nor a signal to our group reaches it.
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
            pass_fds=[lines.fileno()],  # the lock is its own as well
        ):
            _records.append(lines)
            try:
                yield
            finally:
                _records.pop()


def _locked(record):
    """Create a record, which nobody sees before it is locked; return it open."""
    hidden = record.with_name(f".{record.name}")
    lines = hidden.open("w")
    fcntl.flock(lines, fcntl.LOCK_EX)
    hidden.rename(record)
    return lines


def _take_over():
    """Clear up after sessions whose caretakers were killed too."""
    for record in RECORDS.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), record.open() as lines:
            fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear_up(record)


def expect(kind, what):
    """Tell of a `directory` of an engine, a `netns` or a `link`: they go with the session."""
    for record in _records[-1:]:
        record.write(f"{kind} {what}\n")
        record.flush()


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
    while time.monotonic() < deadline and (found := _others(is_meant)):
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _others(is_meant):
    """Return the numbers of the processes but this one that are meant."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            # A zombie has neither command line nor environment.
            if int(process.name) != os.getpid() and is_meant(process):
                found.append(int(process.name))
    return found


def _clear_up(record):
    marked = f"{MARK}={record.name.removeprefix(PREFIX)}".encode()

    def is_marked(process):
        return marked in (process / "environ").read_bytes().split(b"\0")

    def is_reaper(process):
        return b"roma.deploy.reaper" in (process / "cmdline").read_bytes()

    # Reapers remove the cgroups of what is gone, and end by themselves.
    _kill_all(lambda process: is_marked(process) and not is_reaper(process))
    deadline = time.monotonic() + REAPING
    while time.monotonic() < deadline and _others(is_marked):
        time.sleep(0.05)
    _kill_all(is_marked)
    for line in reversed(record.read_text().splitlines()):
        kind, _, what = line.partition(" ")
        if kind == "directory" and Path(what).exists():
            sweep(what)
            shutil.rmtree(what, ignore_errors=True)
        elif kind == "netns" and Path("/run/netns", what).exists():
            subprocess.run(["ip", "netns", "delete", what], check=False)
        elif kind == "link" and Path("/sys/class/net", what).exists():
            subprocess.run(["ip", "link", "delete", what], check=False)
    record.unlink()


def main(value):
    """Wait for the end of the session, and clear up after it."""
    sys.stdin.read()
    _clear_up(RECORDS / f"{PREFIX}{value}")


if __name__ == "__main__":
    main(sys.argv[1])

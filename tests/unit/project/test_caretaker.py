"""A test session that is killed leaves no process, no directory and no mount behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import caretaker

SESSION = """
import subprocess, sys
from pathlib import Path
from tests.support import caretaker

caretaker.mark()
scratch = Path(sys.argv[1])
with caretaker.watching():
    scratch.mkdir()
    caretaker.expect("directory", scratch)
    (scratch / "file").touch()
    # As an engine does: of its own session, and with a child that has another one.
    shell = "setsid sleep 1000 & exec sleep 1000"
    child = subprocess.Popen(["sh", "-c", shell], start_new_session=True)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def marked(value):
    """Processes of a session, by what their environment says."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{caretaker.MARK}={value}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def mark_of(process):
    """The mark in a process's environment, or None: it is empty while another program is executed."""
    environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    marks = [e.partition(b"=")[2] for e in environment if e.startswith(caretaker.MARK.encode())]
    return marks[0].decode() if marks else None


def until(condition):
    """Wait for something that must happen, and return it; the limit only bounds a failing test."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("end", ["killed", "ended", "killed with its caretaker"])
def test_what_a_session_started_ends_with_it_or_with_the_next(tmp_path, end):
    scratch = tmp_path / "scratch"
    command = [sys.executable, "-c", SESSION, scratch]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=caretaker.ROOT, text=True
    ) as session:
        child = int(session.stdout.readline())
        value = until(lambda: mark_of(child))
        until(lambda: len(marked(value)) >= 3)  # the two that sleep, and the caretaker
        if os.geteuid() == 0:
            (scratch / "data").mkdir()
            subprocess.run(["mount", "--bind", scratch / "data", scratch / "data"], check=True)
        if end != "ended":
            session.send_signal(signal.SIGKILL)
        if end == "killed with its caretaker":
            for process in marked(value):
                os.kill(process, signal.SIGKILL)
        session.stdin.close()
        session.wait(timeout=120)
    if end == "killed with its caretaker":
        assert scratch.exists()
        command[-1] = tmp_path / "next"
        # Its own caretaker ends it: its command names the directory.
        subprocess.run(command, input="", check=False, cwd=caretaker.ROOT, capture_output=True)
    until(lambda: not marked(value))
    until(lambda: not scratch.exists())
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text()

"""A test session that is killed takes its engine, containerd, network and files along."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import caretaker
from tests.unit.project.test_caretaker import marked, until

SESSION = """
import os, sys
from tests.support import caretaker
caretaker.mark()
from tests.support import host as hosts
with caretaker.watching():
    try:
        with hosts.host() as host:
            print(os.environ[caretaker.MARK], host.name, host.tls.parent, flush=True)
            sys.stdin.read()
    except hosts.Unavailable as error:
        print(error, flush=True)
"""


def test_an_engine_ends_with_the_session_that_started_it():
    with subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=caretaker.ROOT,
        text=True,
    ) as session:
        said = session.stdout.readline()
        value, _, rest = said.partition(" ")
        name, _, scratch = rest.strip().partition(" ")
        if not scratch.startswith("/"):
            pytest.skip(said)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(value)]
        assert any(b"--live-restore" in command for command in commands)
        session.send_signal(signal.SIGKILL)
        until(lambda: not marked(value))
        until(lambda: not Path(scratch).exists())
        until(lambda: not Path("/run/netns", name).exists())
        assert scratch not in Path("/proc/self/mountinfo").read_text()

"""TensorFlow's notices: held back while it is imported, unless they are asked for."""

import os
import resource
import subprocess
import sys

import pytest

from roma.serving import session
from roma.serving.quiet import LEVEL, without_notices

NOTICES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795575053.350002   12772 port.cc:153] oneDNN custom operations are on.\n"
    b"W0000 00:00:1795575053.351097   12772 cudart_stub.cc:31] Could not find cuda drivers\n"
)
OTHERS = b"E0000 00:00:1795575053.351097   12772 x.cc:3] a fault\nINFO ready\nI am no notice"


@pytest.fixture
def said(capfd):
    """Write to standard error as native code does; return what came out of it."""

    def write():
        os.write(2, NOTICES)
        os.write(2, OTHERS)
        return capfd.readouterr().err.encode()

    return write


@pytest.mark.parametrize("level", [None, "2", "3"])
def test_notices_are_dropped_and_nothing_else(said, capfd, monkeypatch, level):
    monkeypatch.delenv(LEVEL, raising=False)
    if level is not None:
        monkeypatch.setenv(LEVEL, level)
    with without_notices():
        assert said() == b""
    assert capfd.readouterr().err.encode() == OTHERS
    assert said() == NOTICES + OTHERS  # as ever


@pytest.mark.parametrize("level", ["0", "1"])
def test_whoever_asks_for_notices_gets_them(said, monkeypatch, level):
    monkeypatch.setenv(LEVEL, level)
    with without_notices():
        assert said() == NOTICES + OTHERS


def test_a_failed_import_hides_nothing(capfd, monkeypatch):
    monkeypatch.delenv(LEVEL, raising=False)

    def fails():
        with without_notices():
            os.write(2, OTHERS)
            raise ImportError

    with pytest.raises(ImportError):
        fails()
    assert capfd.readouterr().err.encode() == OTHERS


def test_a_signal_that_ends_the_process_is_seen():
    """As SIGILL is, on a CPU that lacks what TensorFlow was built for."""
    script = (
        "import os\nfrom roma.serving.quiet import without_notices\n"
        "with without_notices():\n    os.abort()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != LEVEL}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, check=False
    )
    assert ended.returncode < 0
    assert b"Fatal Python error: Aborted" in ended.stderr


def test_after_the_import_nothing_is_held_back():
    tf = session.import_tensorflow()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(2)
    os.close(lowest)
    # Standard error cannot be held back without a free descriptor; a call must not need one.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        assert session.import_tensorflow() is tf
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Claims on cgroups, held by processes of their own, and what frees them."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from roma.domain.errors import TakenError
from supervisor.cgroups import Hierarchy
from supervisor.claims import Claims

HOLD = """
import sys
from pathlib import Path
from supervisor.cgroups import Hierarchy
from supervisor.claims import Claims
claims = Claims()
claims.take([Hierarchy(2, (Path(sys.argv[1]),)).group(sys.argv[2], 0.1)])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def groups(tmp_path):
    """Groups a and b; a claim needs nothing of a cgroup but a file that can be locked."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    hierarchy = Hierarchy(2, (tmp_path,))
    return [hierarchy.group(name, 0.1) for name in "ab"]


@contextlib.contextmanager
def held(directory):
    """Let another process claim a group; yield that process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, directory.parent, directory.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def holder(tmp_path, groups):
    """Another process that claims group a."""
    with held(tmp_path / "a") as process:
        yield process


def test_the_second_one_is_told_who_holds_it(tmp_path, groups, holder):
    claims = Claims()
    with pytest.raises(TakenError, match=f"cgroup {tmp_path}/a: process {holder.pid} of this host"):
        claims.take(reversed(groups))
    # A refusal leaves nothing behind: not even what was free.
    with pytest.raises(TakenError):
        claims.take(groups)
    assert claims._held == {}
    claims.take(groups[1:])
    claims.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_claim_ends_with_its_process(groups, holder, how):
    os.kill(holder.pid, how)
    holder.wait(timeout=30)
    claims = Claims()
    claims.take(groups)
    claims.close()


def test_what_is_controlled_may_change_and_stays_claimed(tmp_path, groups):
    claims = Claims()
    claims.take(groups[:1])
    claims.take(groups)
    claims.take(groups[:1])
    other = [sys.executable, "-c", HOLD, tmp_path]

    def taken(name):
        done = subprocess.run([*other, name], input="", capture_output=True, text=True, check=False)
        return f"process {os.getpid()} of this host" in done.stderr

    assert taken("a")
    assert not taken("b")
    claims.close()
    assert not taken("a")


def test_a_group_that_is_not_there_is_not_claimed(tmp_path):
    claims = Claims()
    claims.take([Hierarchy(1, (tmp_path, tmp_path)).group("none", 0.1)])
    assert claims._held == {}


def test_a_group_that_was_made_anew_is_claimed_anew(tmp_path, groups):
    claims = Claims()
    with contextlib.closing(claims):
        claims.take(groups[:1])
        file = tmp_path / "a" / "cgroup.procs"
        file.unlink()
        file.touch()
        claims.take(groups[:1])
        (descriptor,) = claims._held.values()
        assert os.fstat(descriptor).st_ino == file.stat().st_ino
        claims.take(groups[:1])
        assert list(claims._held.values()) == [descriptor]

"""Signals that end a command: no traceback, the signal's exit status, and nothing left behind."""

import os
import signal
import subprocess
import sys

import pytest

ROMA = (sys.executable, "-m", "roma")

EARLY = """
import signal, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
from roma.cli import main
sys.argv = ["roma", "simulate", "roma.yaml"]
main()
"""

POOL = """
import os, time
from roma.lab.experiments.lab import Lab
def show(seconds):
    print("running", flush=True)
    time.sleep(seconds)
Lab((1,)).map(show, [3600])
"""

TRAINING = """
import time
from functools import partial
from roma.cli.interrupts import ending
from roma.lab.learning.training import _processes
with ending(), _processes(2) as each:
    each(partial(print, "running", flush=True), [1, 2])
    each(time.sleep, [3600, 3600])
"""


def signals(*, ignored=()):
    """Return a command line's beginning that gives signals back their default actions."""
    # A shell starts what runs in its background with SIGINT ignored.
    return (
        "env",
        "--default-signal=INT,TERM,HUP",
        *(f"--ignore-signal={name}" for name in ignored),
    )


@pytest.mark.parametrize(
    ("number", "ignored", "status"),
    [
        (signal.SIGINT, (), 130),
        (signal.SIGTERM, (), 143),
        (signal.SIGHUP, (), 129),
        (signal.SIGTERM, ("INT",), 143),
    ],
)
def test_a_signal_ends_a_command_in_order(tmp_path, number, ignored, status):
    file = tmp_path / "roma.yaml"
    os.mkfifo(file)
    with (
        subprocess.Popen(
            [*signals(ignored=ignored), *ROMA, "simulate", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        file.open("wb"),  # opens when the command reads
    ):
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, b"", b"")


def test_what_was_ignored_stays_ignored(tmp_path):
    file = tmp_path / "roma.yaml"
    os.mkfifo(file)
    with subprocess.Popen(
        [*signals(ignored=("HUP",)), *ROMA, "config", "check", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        with file.open("w") as write:
            process.send_signal(signal.SIGHUP)
            write.write("models: {}\n")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "models" in err


@pytest.mark.parametrize("module", ["roma.cli.app", "roma.cli.simulate_command"])
def test_an_interrupt_while_modules_are_imported_has_no_traceback(module):
    done = subprocess.run(
        [*signals(), sys.executable, "-c", EARLY.format(module=module)],
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_no_process_of_an_experiment_outlives_the_first_one():
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"running\n"
        process.kill()
        process.communicate(timeout=60)  # ends when nobody can write any more


def test_processes_of_an_experiment_end_though_it_handles_sigterm():
    code = "from roma.cli.interrupts import ending\nwith ending():\n    " + POOL.replace(
        "\n", "\n    "
    )
    with subprocess.Popen(
        [*signals(), sys.executable, "-c", code], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_processes_of_a_training_end_without_tracebacks(number, status):
    with subprocess.Popen(
        [*signals(), sys.executable, "-c", TRAINING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline().startswith(b"running")
        # A terminal sends Ctrl-C to all of them.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, b"")

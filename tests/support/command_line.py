"""`roma …` in the process of the tests, without the time that an interpreter takes to start."""

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roma.cli.app import main

Roma = Callable[..., "subprocess.CompletedProcess[str]"]


def runner(capfd: pytest.CaptureFixture[str]) -> Roma:
    """Return a function that runs a command line as `python -m roma` does, and what it printed."""

    def roma(*arguments: Any) -> "subprocess.CompletedProcess[str]":
        capfd.readouterr()
        with _own(["roma", *map(str, arguments)]):
            try:
                main()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception as error:
                raise AssertionError(f"roma {arguments} ended with a traceback") from error
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    return roma


@contextlib.contextmanager
def _own(command: list[str]) -> Iterator[None]:
    """Give a command arguments, streams and handlers of the log, and take them back."""
    root = logging.getLogger()
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr, root.handlers[:], root.level
    sys.argv, sys.stdin = command, io.StringIO()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.argv, sys.stdin, sys.stdout, sys.stderr, root.handlers[:], level = kept
        root.setLevel(level)

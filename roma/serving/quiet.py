"""TensorFlow without its notices, which its libraries write while they are imported.

Its levels (`TF_CPP_MIN_LOG_LEVEL`) begin to count when Abseil's log is initialised, which is later.
"""

import contextlib
import faulthandler
import os
import re
import sys
from collections.abc import Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"

_ASKED_FOR = ("0", "1")
"""Levels of whoever wants to see notices, or warnings at least."""

_NOTICE = re.compile(
    rb"[IW]\d{4} \d|WARNING: All log messages before absl::InitializeLog|"
    rb"To enable the following instructions: "
)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Hold back what this process writes to standard error; drop TensorFlow's notices from it.

    Everything else is written when the block ends. If a signal ends the process before, such as
    SIGILL on a CPU that lacks what TensorFlow was built for, Python's traceback is written. Nothing
    is held back where the environment asks for notices.
    """
    if os.environ.get(LEVEL) in _ASKED_FOR:
        yield
        return
    sys.stderr.flush()
    error = 2  # of the process, not Python's: native code writes there
    saved = os.dup(error)
    with open(os.memfd_create("stderr"), "r+b") as held:
        os.dup2(held.fileno(), error)
        faulthandler.enable(saved)
        try:
            yield
        finally:
            sys.stderr.flush()
            faulthandler.disable()
            os.dup2(saved, error)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _NOTICE.match(line):
                    os.write(error, line)

"""Filter for the notices that TensorFlow's libraries write while they are imported.

TensorFlow's log level (`TF_CPP_MIN_LOG_LEVEL`) takes effect when Abseil's log is initialised, which
is later.
"""

import contextlib
import faulthandler
import os
import re
import sys
from collections.abc import Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"

_ASKED_FOR = ("0", "1")
"""Log levels at which notices or warnings are shown."""

_NOTICE = re.compile(
    rb"[IW]\d{4} \d|WARNING: All log messages before absl::InitializeLog|"
    rb"To enable the following instructions: "
)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Buffer what this process writes to standard error; drop TensorFlow's notices from it.

    Everything else is written when the block ends. If a signal ends the process before, such as
    SIGILL on a CPU without the instructions that TensorFlow was built for, Python's traceback is
    written. Nothing is buffered if the environment asks for notices.
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
            with contextlib.suppress(OSError):  # nobody reads it any more
                for line in held:
                    if not _NOTICE.match(line):
                        os.write(error, line)

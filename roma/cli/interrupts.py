"""Ctrl-C, SIGTERM and SIGHUP while a command runs or is still imported.

A program that serves handles them itself. Any other command ends on SIGTERM and on a hang-up as it
does on Ctrl-C: its temporary files, cgroups and processes go with it. Signals that were ignored
when the command was started, as by nohup, stay ignored.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as of a program that the signal killed."""


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """End a command on SIGTERM and SIGHUP as on Ctrl-C, with the exit status of that signal."""
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        match signal.getsignal(signal.SIGINT):
            case signal.SIG_DFL:  # modules are being imported
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            case signal.SIG_IGN:  # a shell starts commands in its background so
                raise KeyboardInterrupt
            case _:
                signal.raise_signal(signal.SIGINT)

    known = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in known:
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + received[-1] if received else INTERRUPTED)
    except SystemExit as error:
        if received and error.code == INTERRUPTED:
            sys.exit(128 + received[-1])
        raise
    finally:
        for number in known:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl-C kill the process while modules are imported: some swallow KeyboardInterrupt."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

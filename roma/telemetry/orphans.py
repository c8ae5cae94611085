"""Children that do not outlive their parent, however it ends: programs, and processes of a pool."""

import contextlib
import ctypes
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children

from roma.domain.errors import RomaError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; prctl(2).

    For `preexec_fn`, in a parent without other threads whose locks the child could inherit.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def begin_in_pool() -> None:
    """Begin a process of a pool: it leaves Ctrl-C and a hang-up to its parent, and ends with it."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def ended_on_error(pool: ProcessPoolExecutor) -> Iterator[None]:
    """End a new pool's processes, with pending and running jobs, if the block is left by an error.

    That is mainly Ctrl-C. Raises RomaError where one of them was killed.
    """
    others = set(active_children())
    try:
        yield
    except BaseException as error:
        for process in set(active_children()) - others:
            process.terminate()
        # Its thread ends with them; one that ended while the interpreter does would print a
        # traceback.
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise RomaError("a process that computes was killed: is memory short?") from error
        raise

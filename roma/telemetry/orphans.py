"""Parent-death signal: no child outlives its parent, however the parent ends."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; prctl(2).

    For `preexec_fn`, in a parent without other threads whose locks the child could inherit.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""The life cycles of requests and executors, as tables.

A request that reached a final state leaves the dispatcher's state at once, so "ends exactly once"
is a property of the table: no step leads out of a final state.
"""

from enum import StrEnum
from typing import Final

from roma.domain.lifecycle import LifeCycle


class RequestState(StrEnum):
    """States of a request."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class RequestStep(StrEnum):
    """Steps of a request's life cycle."""

    ADMIT = "admit"
    REJECT = "reject"
    RUN = "run"
    RETURN = "return"
    """Its executor was never reached: back into the queue."""
    ANSWER = "answer"
    FAIL = "fail"
    CANCEL = "cancel"


class ExecutorState(StrEnum):
    """States of an executor."""

    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"
    SUSPECTED = "suspected"
    """A connection broke: it gets nothing more until its server answers a health check."""
    LOST = "lost"


class ExecutorStep(StrEnum):
    """Steps of an executor's life cycle."""

    READY = "ready"
    SUSPECT = "suspect"
    RESUME = "resume"
    """The server answered, while executions still run."""
    START = "start"
    FINISH = "finish"
    """An execution ended; others still run."""
    DRAIN = "drain"
    """The last execution ended."""
    LOSE = "lose"


class Rotation(StrEnum):
    """Part of an executor in the rotation, while it is live."""

    FULL = "full"
    PROBING = "probing"
    """It gets one request at a time until one is answered."""
    EJECTED = "ejected"
    """It gets none for a while."""


class RotationStep(StrEnum):
    """Steps of an executor's part in the rotation."""

    DOUBT = "doubt"
    """A request timed out: the executable may still compute it."""
    EJECT = "eject"
    PROBE = "probe"
    """The ejection has ended, or the executor is needed again."""
    RESTORE = "restore"
    RESTART = "restart"
    """Its executable is ready anew."""


_R, _RS = RequestState, RequestStep
REQUEST: Final = LifeCycle(
    "request",
    {
        (_R.NEW, _RS.ADMIT): _R.QUEUED,
        (_R.NEW, _RS.REJECT): _R.REJECTED,
        (_R.QUEUED, _RS.RUN): _R.RUNNING,
        (_R.QUEUED, _RS.REJECT): _R.REJECTED,
        (_R.QUEUED, _RS.CANCEL): _R.CANCELLED,
        (_R.RUNNING, _RS.RETURN): _R.QUEUED,
        (_R.RUNNING, _RS.ANSWER): _R.ANSWERED,
        (_R.RUNNING, _RS.FAIL): _R.FAILED,
        (_R.RUNNING, _RS.CANCEL): _R.CANCELLED,
        # The client's own deadline passed.
        (_R.RUNNING, _RS.REJECT): _R.REJECTED,
    },
)

_X, _XS = ExecutorState, ExecutorStep
EXECUTOR: Final = LifeCycle(
    "executor",
    {
        (_X.LOADING, _XS.READY): _X.IDLE,
        (_X.LOST, _XS.READY): _X.IDLE,
        (_X.IDLE, _XS.START): _X.BUSY,
        (_X.BUSY, _XS.START): _X.BUSY,
        (_X.BUSY, _XS.FINISH): _X.BUSY,
        (_X.BUSY, _XS.DRAIN): _X.IDLE,
        (_X.IDLE, _XS.SUSPECT): _X.SUSPECTED,
        (_X.BUSY, _XS.SUSPECT): _X.SUSPECTED,
        (_X.SUSPECTED, _XS.SUSPECT): _X.SUSPECTED,
        (_X.SUSPECTED, _XS.FINISH): _X.SUSPECTED,
        (_X.SUSPECTED, _XS.DRAIN): _X.SUSPECTED,
        (_X.SUSPECTED, _XS.READY): _X.IDLE,
        (_X.SUSPECTED, _XS.RESUME): _X.BUSY,
        (_X.LOADING, _XS.LOSE): _X.LOST,
        (_X.IDLE, _XS.LOSE): _X.LOST,
        (_X.BUSY, _XS.LOSE): _X.LOST,
        (_X.SUSPECTED, _XS.LOSE): _X.LOST,
    },
)

_T, _TS = Rotation, RotationStep
ROTATION: Final = LifeCycle(
    "rotation",
    {
        (_T.FULL, _TS.DOUBT): _T.PROBING,
        (_T.PROBING, _TS.DOUBT): _T.PROBING,
        (_T.FULL, _TS.EJECT): _T.EJECTED,
        (_T.PROBING, _TS.EJECT): _T.EJECTED,
        (_T.EJECTED, _TS.PROBE): _T.PROBING,
        (_T.FULL, _TS.RESTORE): _T.FULL,
        (_T.PROBING, _TS.RESTORE): _T.FULL,
        **{(state, _TS.RESTART): _T.FULL for state in _T},
    },
)

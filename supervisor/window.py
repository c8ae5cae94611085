"""Rates of one dispatcher's cumulative counters since the last exchange with it.

Rates, not counts: after a missed exchange a dispatcher's counts cover a longer time than others'.
"""

from dataclasses import dataclass
from typing import Final

from controllers.shaping import MAX_GAP
from roma.domain.events import Reason
from roma.domain.exchange import LIVE, ExchangeReply, ModelReport

_SHED: Final = (Reason.QUEUE_FULL.value, Reason.PREDICTED_LATE.value, Reason.DEADLINE.value)


@dataclass(slots=True)  # as `controllers.measurement.Measurement`
class ModelDelta:
    """A model's rates (per second) since the last exchange, and the report they came from."""

    report: ModelReport
    arrivals: float
    completed_gpu: float
    completed_cpu: float
    failed: float
    shed: float
    given_up: float
    violations: float


class ReplyWindow:
    """The last two replies of one dispatcher.

    The first reply is only a baseline: counters that grew before this supervisor started say
    nothing about the last period. After a restart of the dispatcher (another epoch) all its counts
    are new.
    """

    def __init__(self) -> None:
        self._now: _Snapshot | None = None
        self._before: _Snapshot | None = None
        self._baseline: _Snapshot | None = None
        """The earlier reply, if the dispatcher has not restarted since."""
        self._elapsed = 0.0
        self._fresh = False

    def take(self, reply: ExchangeReply, now: float) -> None:
        """Record a reply."""
        before, self._now = self._now, _Snapshot(reply, now)
        self._before = self._baseline = before
        self._elapsed = 0.0 if before is None else now - before.time
        if before is not None and before.epoch != reply.epoch:
            self._baseline = None
        self._fresh = True

    def unobservable_reason(self, now: float) -> str:
        """Return why this dispatcher's load is unobservable, or an empty string.

        A dispatcher that has been silent for longer than `MAX_GAP` no longer counts: its clients
        have gone elsewhere, and the others' load must still be controlled.
        """
        fresh, self._fresh = self._fresh, False
        if fresh:
            return "" if self.usable else "answered for the first time"
        if self._now is None or now - self._now.time > MAX_GAP:
            self._now = self._before = self._baseline = None
            return ""
        return f"did not answer for {now - self._now.time:.1f} s"

    @property
    def usable(self) -> bool:
        """True if there is a period to measure."""
        return self._now is not None and self._before is not None

    @property
    def heard(self) -> bool:
        """True if the dispatcher has answered, and has not been silent for too long since."""
        return self._now is not None

    def in_flight(self, executor: str) -> int:
        """Return the number of executions in flight from this dispatcher on an executor."""
        report = self._now.executors.get(executor) if self._now else None
        return 0 if report is None else report.in_flight

    def live(self, executor: str) -> bool:
        """Return True if the dispatcher can send work to this executor now."""
        report = self._now.executors.get(executor) if self._now else None
        return report is not None and report.state in LIVE

    def arrivals(self, model: str, executor: str) -> float:
        """Return a model's arrivals per second, 0 where they cannot be sent to the executor."""
        delta = self.model(model) if self.usable and self.live(executor) else None
        return 0.0 if delta is None else delta.arrivals

    def model(self, name: str) -> ModelDelta | None:
        """Return the rates of one model; None if the dispatcher does not have it."""
        report = self._now.models.get(name) if self._now else None
        if report is None:
            return None
        base = self._baseline
        old = base.models.get(name) if base else None
        if old is not None and report.arrivals < old.arrivals:
            old = None  # it was removed and came again: all its counts are new
        return ModelDelta(
            report,
            arrivals=self._rate(report.arrivals - (old.arrivals if old else 0)),
            completed_gpu=self._rate(report.completed_gpu - (old.completed_gpu if old else 0)),
            completed_cpu=self._rate(report.completed_cpu - (old.completed_cpu if old else 0)),
            failed=self._rate(report.failed - (old.failed if old else 0)),
            shed=self._rate(_shed(report) - (_shed(old) if old else 0)),
            given_up=self._rate(report.cancelled_late - (old.cancelled_late if old else 0)),
            violations=self._rate(report.broken - (old.broken if old else 0)),
        )

    def completed(self, executor: str) -> float:
        """Return the executions per second that one executor answered."""
        count, before = _completed(self._now, executor), _completed(self._baseline, executor)
        return self._rate(count - before if count >= before else count)

    def _rate(self, count: int) -> float:
        return count / self._elapsed if self._elapsed > 0 else 0.0


class _Snapshot:
    """A reply, indexed by name."""

    def __init__(self, reply: ExchangeReply, time: float) -> None:
        self.time = time
        self.epoch = reply.epoch
        self.models = {m.model: m for m in reply.models}
        self.executors = {e.executor: e for e in reply.executors}


def _completed(snapshot: _Snapshot | None, executor: str) -> int:
    report = snapshot.executors.get(executor) if snapshot else None
    return report.completed if report else 0


def _shed(report: ModelReport) -> int:
    rejected = report.rejected
    return sum([rejected.get(reason, 0) for reason in _SHED]) if rejected else 0

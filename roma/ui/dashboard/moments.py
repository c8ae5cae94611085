"""Moments: a model's last second, as the difference between two reports of one dispatcher.

Reports count since the dispatcher started; the dashboard shows the most recent changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roma.domain.events import Reject
from roma.domain.exchange import ExchangeReply, ModelReport
from roma.domain.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Moment:
    """A model over the last `seconds`; counts cover that time, `rejected` is by reason.

    `waiting`, `in_flight`, `oldest_age` and the response times are as of now, in seconds.
    """

    model: str
    seconds: float
    arrivals: int
    answered_cpu: int
    answered_gpu: int
    invalid: int
    late: int
    rejected: dict[str, int]
    failed: int
    cancelled: int
    waiting: int
    in_flight: int
    oldest_age: float
    response_time: float | None
    mean_time: float | None
    cancelled_late: int = 0
    rejected_by_client: int = 0

    @property
    def answered(self) -> int:
        """Requests that were answered, on any device."""
        return self.answered_cpu + self.answered_gpu

    @property
    def refused(self) -> int:
        """Requests that were rejected, for any reason."""
        return sum(self.rejected.values())

    @property
    def broken(self) -> int:
        """Requests whose promise was broken: late, refused, failed, or given up when too late."""
        return self.late + self._counted + self.failed + self.cancelled_late

    @property
    def ended(self) -> int:
        """Requests that ended in a way that counts for the promise."""
        answered = self.answered - self.invalid
        return answered + self._counted + self.failed + self.cancelled_late

    @property
    def _counted(self) -> int:
        """Refusals that count for the promise."""
        return self.refused - self.rejected_by_client


def record(
    moment: Moment, spec: ModelSpec, at: float, refusals: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a moment as a line of the decision log, with its promise, time and refusals."""
    return {
        "at": at,
        "sla": spec.sla.response_time,
        "set_point": spec.sla.set_point,
        "statistic": spec.sla.statistic.value,
        "budget": spec.sla.budget,
        **asdict(moment),
        "refusals": refusals,
    }


def refusal(at: float, reject: Reject) -> dict[str, Any]:
    """Return a refusal as JSON types: its rule and its numbers."""
    return {
        "at": at,
        "request": reject.request,
        "reason": reject.reason.value,
        "detail": reject.detail,
        "retry_after": reject.retry_after,
    }


class Moments:
    """Converter of a dispatcher's reports to moments; the first report is only the baseline."""

    def __init__(self) -> None:
        self._last: dict[str, ModelReport] = {}
        self._epoch: str | None = None
        self._at = 0.0

    def take(self, reply: ExchangeReply, now: float) -> list[Moment]:
        """Return the changes since the last report; `now` in seconds, never decreasing."""
        if self._epoch not in (None, reply.epoch):
            self._last = {}  # it restarted: all its counts are new
        started, seconds = self._epoch is not None, now - self._at
        found = [
            _moment(report, self._last.get(report.model), seconds)
            for report in reply.models
            if started and seconds > 0
        ]
        self._last = {report.model: report for report in reply.models}
        self._epoch, self._at = reply.epoch, now
        return found


def _moment(now: ModelReport, last: ModelReport | None, seconds: float) -> Moment:
    if last is not None and now.arrivals < last.arrivals:
        last = None  # it was removed and came again: all its counts are new

    def grew(name: str) -> int:
        value: int = getattr(now, name)
        return value - getattr(last, name) if last is not None else value

    before = last.rejected if last is not None else {}
    rejected = {reason: n - before.get(reason, 0) for reason, n in now.rejected.items()}
    return Moment(
        model=now.model,
        seconds=seconds,
        arrivals=grew("arrivals"),
        answered_cpu=grew("completed_cpu"),
        answered_gpu=grew("completed_gpu"),
        invalid=grew("invalid"),
        late=grew("late"),
        rejected={reason: n for reason, n in rejected.items() if n},
        failed=grew("failed"),
        cancelled=grew("cancelled"),
        cancelled_late=grew("cancelled_late"),
        rejected_by_client=grew("rejected_by_client"),
        waiting=now.waiting,
        in_flight=now.in_flight,
        oldest_age=now.oldest_age,
        response_time=now.response_time,
        mean_time=now.mean_time,
    )

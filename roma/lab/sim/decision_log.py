"""The decision log of a simulated run: a live run's records, with `at` in virtual seconds.

It only observes: a logged run makes the same decisions as one without a log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dispatcher import reports
from dispatcher.core import Dispatcher
from roma.telemetry import decision_log
from roma.ui.dashboard.moments import Moments, record, refusal
from supervisor.core import Supervisor
from supervisor.decision_log import Decision, plain

Write = Callable[[str, Sequence[Mapping[str, Any]]], None]
"""Takes the name of a file and records to append to it, as `DecisionLog.write` does."""

PERIOD = 1.0
"""Seconds between two samples of the dispatcher, as in `dispatcher.live.admin.dashboard_feed`."""


class SimDecisionLog:
    """Writes the decision log of one run through `write`.

    `periods` are the workers' control periods in seconds, by name.
    """

    def __init__(self, write: Write, law: str, epoch: str, *, periods: Mapping[str, float]) -> None:
        self._write = write
        self._law = law
        self._periods = periods
        self._epoch = epoch
        self._moments = Moments()
        self._looked = 0.0

    def decided(self, worker: str, decisions: Sequence[Decision]) -> None:
        """Write decisions of a worker, one period late, when `observed` is known."""
        if decisions:
            more = {"worker": worker, "law": self._law, "period": self._periods[worker]}
            records = [plain(d, at=d.time, **more) for d in decisions]
            self._write(decision_log.decisions(worker), records)

    def look(self, core: Dispatcher, now: float) -> None:
        """Write the outcomes of requests since the last sample; the first is only a baseline."""
        found = self._moments.take(reports.reply(core, self._epoch, now), now)
        since, self._looked = self._looked, now
        records = []
        for moment in found:
            queue = core.queues[moment.model]
            fresh = [refusal(time, reject) for time, reject in queue.refusals if time > since]
            records.append(record(moment, queue.spec, now, fresh))
        if records:
            self._write(decision_log.MODELS, records)

    def end(self, core: Dispatcher, workers: Mapping[str, Supervisor | None], now: float) -> None:
        """Write the remaining records when the run ends."""
        self.look(core, now)
        for worker, supervisor in workers.items():
            if supervisor is not None:
                self.decided(worker, supervisor.last())

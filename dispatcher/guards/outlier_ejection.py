"""Outlier ejection: an executor that fails leaves rotation, then is probed with one request.

An executable can be reachable and answer its status calls, and still fail every request: it is out
of GPU memory, say, or runs a broken version. Other executors of its model then take its share. The
only executor left for a model is never ejected: a fault of some inputs must not become an outage.

There are two signs, after Envoy's outlier detection. Gateway errors (502, 503, 504, resets,
timeouts) and answers that are no error object eject after five in a row, whatever other executors
do. Failures that a working server explains in an error object may be the input's fault on any
executor: they eject only if executors beside it answer the same model's requests
(`dispatcher/live/backends/verdicts.py`). Where a policy keeps to one executor, the others idle and
prove nothing, so they are compared with it: one request at a time.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from dispatcher.schedulers.base import RunChoice
from dispatcher.state.executor import Executor
from dispatcher.state.executors import Executors
from dispatcher.state.lifecycle import RotationStep
from dispatcher.state.queues import ModelQueue
from roma.domain.events import Result

ERRORS = 5
"""Errors in a row before an ejection (Envoy's consecutive_gateway_failure)."""

WEIGHT = 0.05
"""Weight of one execution in the share of failed ones: the last twenty or so count."""

EXCESS = 0.6
"""Excess of that share over another executor's before an ejection. Where half of a model's inputs
fail on two executors alike, the difference of their shares has a standard deviation of 0.11."""

ANSWERS = 10
"""Requests that the other executor answered meanwhile; an idle one gets some first
(`comparison`)."""

BASE_EJECTION_TIME = 1.0
"""Seconds of the first ejection; each one after a failed probe lasts twice as long."""

MAX_EJECTION_TIME = 30.0


class Ejections:
    """The ejected executors and the ends of their ejections."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors
        self.ends: list[tuple[float, str]] = []
        """Ends of ejections, each with the executor's name; a heap."""
        self.suspects: list[str] = []
        """Executors whose share of failures exceeds that of one that answers everything."""

    def on_ended(self, executor: Executor, model: str, result: Result, now: float) -> None:
        """Note how an execution of `model` ended; its executor may be ejected or restored."""
        if result is Result.OK or result is Result.INVALID:
            self._on_answered(executor)
            return
        if not executor.fault_share:
            executor.marks = {
                other.spec.name: other.completed
                for other in self._beside(executor, executor.models)
            }
        executor.fault_share += WEIGHT * (1 - executor.fault_share)
        if executor.fault_share > EXCESS and executor.spec.name not in self.suspects:
            self.suspects.append(executor.spec.name)
        explained = result is Result.FAILURE
        executor.errors = 0 if explained else executor.errors + 1
        if executor.ejected:
            return
        is_broken = executor.errors > 0 and (executor.probing or executor.errors >= ERRORS)
        if (is_broken or self._is_worse(executor, model)) and not self._is_needed(executor):
            span = min(MAX_EJECTION_TIME, BASE_EJECTION_TIME * 2**executor.ejections)
            if span < MAX_EJECTION_TIME:  # 2**1024 is no float: a night of the longest ones
                executor.ejections += 1
            executor.rotate(RotationStep.EJECT)
            heappush(self.ends, (now + span, executor.spec.name))
        elif result is Result.TIMEOUT:
            # It may still compute an answer that no client waits for: one request at a time until
            # one ends.
            executor.rotate(RotationStep.DOUBT)
        elif explained:
            executor.rotate(RotationStep.RESTORE)

    def _on_answered(self, executor: Executor) -> None:
        executor.errors = 0
        executor.fault_share *= 1 - WEIGHT
        if executor.ejected:  # it began before the ejection
            return
        if executor.probing or executor.fault_share < WEIGHT / 2:
            executor.fault_share = 0.0
        executor.ejections = 0
        executor.rotate(RotationStep.RESTORE)

    def _is_worse(self, executor: Executor, model: str) -> bool:
        """Return True if another executor answers the requests of `model` that this one fails."""
        for other in self._beside(executor, (model,)):
            since = executor.marks.setdefault(other.spec.name, other.completed)
            if (
                executor.fault_share - other.fault_share > EXCESS
                and other.completed - since >= ANSWERS
            ):
                return True
        return False

    def comparison(self, queues: Mapping[str, ModelQueue]) -> RunChoice | None:
        """Return a waiting request for an idle executor, to compare a suspect with it.

        None if the idle executor has answered enough already, or has failed so often that the
        inputs may be at fault.
        """
        for name in tuple(self.suspects):
            if name not in self._executors or self._executors[name].fault_share <= EXCESS:
                self.suspects.remove(name)
                continue
            suspect = self._executors[name]
            if suspect.ejected or not suspect.live:
                continue
            for model in suspect.models:
                if model not in queues or queues[model].head is None:
                    continue
                for other in self._beside(suspect, (model,)):
                    if self._is_to_compare(suspect, other):
                        return RunChoice(other.spec.name, model)
        return None

    def _is_to_compare(self, suspect: Executor, other: Executor) -> bool:
        """Return True if a request may run on `other` and its result would tell about `suspect`."""
        if other.spec.is_planned or other.running or not other.has_room:
            return False
        answered = other.completed - suspect.marks.setdefault(other.spec.name, other.completed)
        return answered < ANSWERS and suspect.fault_share - other.fault_share > EXCESS

    def _beside(self, executor: Executor, models: tuple[str, ...]) -> list[Executor]:
        """Return the other live executors of these models."""
        found = [other for model in models for other in self._executors.of(model)]
        return [other for other in found if other is not executor]

    def on_lost(self) -> list[Executor]:
        """Return the executors that are needed again because another one is lost."""
        # An executable that was restarted and ejected again is listed twice.
        ejected = dict.fromkeys(e for _, name in self.ends if (e := self._find(name)))
        found = [executor for executor in ejected if self._is_needed(executor)]
        for executor in found:
            executor.rotate(RotationStep.PROBE)
        if found:
            self.ends = [(end, name) for end, name in self.ends if self._find(name) is not None]
            heapify(self.ends)
        return found

    def end(self, now: float) -> list[Executor]:
        """Return the executors that may be probed now."""
        found = []
        while self.ends and self.ends[0][0] <= now:
            _, name = heappop(self.ends)
            executor = self._find(name)
            if executor is not None:
                executor.rotate(RotationStep.PROBE)
                found.append(executor)
        return found

    def _find(self, name: str) -> Executor | None:
        """Return an executor if it exists and is ejected."""
        if name not in self._executors or not self._executors[name].ejected:
            return None
        return self._executors[name]

    def _is_needed(self, executor: Executor) -> bool:
        """Return True if a model has no other executor that may take its requests."""
        return any(
            all(other is executor or other.ejected for other in self._executors.of(model))
            for model in executor.models
        )

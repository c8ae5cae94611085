"""Executors that fail again and again are left alone for a while, then tried with one request.

An executable can be reachable and answer its status calls, and still fail every request: out of
GPU memory, say, or with a broken version. Others of its model then take its share. Nothing is
ejected that is the only one left for a model: a fault of some inputs must not become an outage.
"""

from heapq import heapify, heappop, heappush

from dispatcher.executors import Executor, Executors
from roma.events import Result

ERRORS = 5
"""Errors in a row before an executor is left alone (Envoy's consecutive_5xx)."""

SHORTEST = 1.0
"""Seconds of the first ejection; each one that follows a failed try lasts twice as long."""

LONGEST = 30.0


class Ejections:
    """Which executors are left alone, and until when."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors
        self.ends: list[tuple[float, str]] = []
        """When ejections end, and whose; a heap."""

    def on_ended(self, executor: Executor, result: Result, now: float) -> None:
        """Note how an execution ended; its executor may be ejected, or trusted again."""
        if result is not Result.ERROR and result is not Result.TIMEOUT:
            executor.errors = 0
            if not executor.is_ejected:  # else it began before that
                executor.ejections, executor.is_on_trial = 0, False
            return
        executor.errors += 1
        if executor.is_ejected:
            return
        if (executor.is_on_trial or executor.errors >= ERRORS) and not self._is_needed(executor):
            span = min(LONGEST, SHORTEST * 2**executor.ejections)
            executor.ejections += 1
            executor.is_ejected, executor.is_on_trial = True, False
            heappush(self.ends, (now + span, executor.spec.name))
        elif result is Result.TIMEOUT:
            # It may still compute what nobody waits for: one request at a time, until one ends.
            executor.is_on_trial = True

    def on_lost(self) -> list[Executor]:
        """Return the executors that are needed again now that another one is lost."""
        found = [e for _, name in self.ends if (e := self._find(name)) and self._is_needed(e)]
        for executor in found:
            executor.is_ejected, executor.is_on_trial = False, True
        if found:
            self.ends = [(end, name) for end, name in self.ends if self._find(name) is not None]
            heapify(self.ends)
        return found

    def end(self, now: float) -> list[Executor]:
        """Return the executors that may be tried again now."""
        found = []
        while self.ends and self.ends[0][0] <= now:
            _, name = heappop(self.ends)
            executor = self._find(name)
            if executor is not None:
                executor.is_ejected, executor.is_on_trial = False, True
                found.append(executor)
        return found

    def _find(self, name: str) -> Executor | None:
        """Return an executor if it is there and ejected."""
        if name not in self._executors or not self._executors[name].is_ejected:
            return None
        return self._executors[name]

    def _is_needed(self, executor: Executor) -> bool:
        """Return whether a model has no other executor that may take its requests."""
        return any(
            all(other is executor or other.is_ejected for other in self._executors.of(model))
            for model in executor.spec.models
        )

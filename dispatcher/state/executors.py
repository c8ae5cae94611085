"""All executors, found by name or by model: who can start what, and how long it takes.

Predictions count on the executors in rotation: one that is ejected answers nothing for a while, and
one that has failed from its start has no time that could be predicted.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from dispatcher.state.executor import Executor
from roma.domain.model import Device, ExecutorSpec

RECOVERY: Final = 1.0
"""Seconds that a client should wait before a retry while no executable is ready."""

_CPU: Final = Device.CPU
_GPU: Final = Device.GPU
_NOBODY: Final[list[Executor]] = []


class Executors:
    """All executors, found by name or by model."""

    def __init__(self) -> None:
        self._by_name: dict[str, Executor] = {}
        self._by_model: dict[str, list[Executor]] = {}
        self.gpus: list[Executor] = []
        self.off_gpus: frozenset[str] = frozenset()
        """Models that the servers of the GPUs lack, while they serve others."""

    def __getitem__(self, name: str) -> Executor:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Executor]:
        return iter(self._by_name.values())

    def add(self, spec: ExecutorSpec) -> Executor:
        """Add an executor in state loading; its name must be new."""
        assert spec.name not in self._by_name, spec.name
        executor = self._by_name[spec.name] = Executor(spec)
        self._enter(executor)
        if spec.device is Device.GPU:
            self.gpus.append(executor)
        return executor

    def remove(self, name: str) -> None:
        """Forget an executor."""
        executor = self._by_name.pop(name)
        self._leave(executor)
        if executor in self.gpus:
            self.gpus.remove(executor)

    def assign(self, name: str, models: tuple[str, ...]) -> None:
        """Let an executor serve these models from now on."""
        executor = self._by_name[name]
        self._leave(executor)
        executor.spec = replace(executor.spec, models=models)
        self._enter(executor)

    def miss(self, name: str, models: tuple[str, ...]) -> None:
        """Let an executor serve what its spec names, without these models."""
        executor = self._by_name[name]
        self._leave(executor)
        executor.missing = frozenset(models)
        self._enter(executor)

    def update_off_gpus(self) -> bool:
        """Let `off_gpus` be what the most complete GPU lacks; return True if it changed."""
        missing = [gpu.missing for gpu in self.gpus if gpu.live and not gpu.suspected]
        before = self.off_gpus
        self.off_gpus = min(missing, key=len, default=before)
        return self.off_gpus != before

    def lacks_more(self, name: str, models: Collection[str]) -> bool:
        """Return True if an executor whose server lacks these models is no use beside other GPUs.

        GPUs take work together only if each has all models of the most complete one: policies pick
        a model for whichever is free.
        """
        return any(
            len(gpu.missing) <= len(models) and not gpu.missing.issuperset(models)
            for gpu in self.gpus
            if gpu.live and not gpu.suspected and gpu.spec.name != name
        )

    def _enter(self, executor: Executor) -> None:
        for model in executor.spec.models:
            if model not in executor.missing:
                self._by_model.setdefault(model, []).append(executor)

    def _leave(self, executor: Executor) -> None:
        for model in executor.spec.models:
            if model in executor.missing:
                continue
            serving = self._by_model[model]
            serving.remove(executor)
            if not serving:
                del self._by_model[model]

    def serve(self, model: str) -> bool:
        """Return True if any live executor can run `model`."""
        for executor in self._by_model.get(model, _NOBODY):  # noqa: SIM110 - any() costs twice as much
            if executor.live:
                return True
        return False

    def of(self, model: str) -> list[Executor]:
        """Return the live executors that can run `model`."""
        # Called several times per request: a generator costs twice as much as a list.
        return [e for e in self._by_model.get(model, _NOBODY) if e.live]

    def _in_rotation(self, model: str) -> list[Executor]:
        """Return the executors that a prediction for `model` may count on."""
        return [e for e in self._by_model.get(model, _NOBODY) if e.in_rotation]

    def slots(self, model: str) -> int:
        """Return the most executions that one executable of `model` may run at once; 0 if none."""
        return max((e.limit for e in self.of(model)), default=0)

    def loading(self, model: str) -> list[Executor]:
        """Return the executors of `model` that are not live, or have others of their models."""
        found = [e for e in self._by_model.get(model, _NOBODY) if not e.live]
        return found + [gpu for gpu in self.gpus if model in gpu.missing]

    def starts_slowly(self, model: str) -> bool:
        """Return True if a request of `model` was never measured, and has too few cores to be fast.

        Only where no GPU serves the model: there the first request is not slow.
        """
        serving = self._in_rotation(model)
        return bool(serving) and all(
            e.work(model) is None and e.cores < min(e.spec.threads, e.spec.most_cores)
            for e in serving
        )

    def fastest(self, model: str) -> float:
        """Return the shortest predicted seconds for `model`; 0 if nothing was measured."""
        return _shortest(self._by_model.get(model, _NOBODY), model)

    def fastest_tail(self, model: str) -> float:
        """Return the shortest tail in rotation; 0 if one is unmeasured, or without any."""
        tails = [executor.tail(model) for executor in self._in_rotation(model)]
        return min((0.0 if tail is None else tail for tail in tails), default=0.0)

    def tail_at_most_cores(self, model: str) -> float:
        """Return the shortest tail in rotation if every controller granted its most now."""
        tails = [executor.tail(model, executor.most[1]) for executor in self._in_rotation(model)]
        return min((0.0 if tail is None else tail for tail in tails), default=0.0)

    def wait(self, model: str, ahead: int) -> float:
        """Return the predicted seconds until `ahead` requests of `model` have been started.

        Without an executor in rotation: the seconds until one may be back.
        """
        rate = self._rate(model)
        return ahead / rate if rate > 0 else RECOVERY

    def backlog(self, model: str, waiting: int) -> float:
        """Return the seconds in which the granted cores can do what waits and runs of `model`.

        0 if no cost is known, or where a GPU takes a part. A request that comes alone spends what
        its quota has left over from silence and so seems cheap; those of a queue get no more than
        the granted cores.
        """
        cores = cost = 0.0
        for executor in self._in_rotation(model):
            if executor.spec.device is _GPU:
                return 0.0
            cores += executor.cores * executor.part
            cost = max(cost, executor.cost or 0.0)
            waiting += len(executor.running)
        return waiting * cost / cores if cores else 0.0

    def may_grow(self, model: str) -> bool:
        """Return True if requests of `model` wait for slots, and more cores would do more."""
        grows = False
        for executor in self._by_model.get(model, _NOBODY):
            if executor.has_room:
                return False
            if not executor.in_rotation:
                continue
            limit, share = executor.most
            grows = grows or limit * share > executor.limit * executor.share
        return grows

    def response_at_most_cores(self, model: str, ahead: int) -> float:
        """Return the response time of the next request if every controller granted its most now.

        `ahead` requests wait already; 0 if an executor is unmeasured.
        """
        rate, shortest = 0.0, math.inf
        for executor in self._in_rotation(model):
            work = executor.work(model)
            if not work:
                return 0.0
            limit, share = executor.most
            rate += limit * share / work
            shortest = min(shortest, work / share)
        return ahead / rate + shortest if rate > 0 else math.inf

    def _rate(self, model: str) -> float:
        """Return the requests per second that `model`'s executors can finish; inf if unmeasured.

        A GPU is counted whole although models share it. Admission therefore errs on the side of
        admitting, since a request that turns out too late is rejected from the queue.
        """
        total = 0.0
        for executor in self._in_rotation(model):
            expected = executor.expected(model)
            if not expected:
                return math.inf
            total += executor.limit / expected
        return total

    def cpu_work(self, model: str) -> float | None:
        """Return the core-seconds of a request of `model` on a CPU; None if never measured."""
        least: float | None = None
        for executor in self._by_model.get(model, _NOBODY):
            if executor.spec.device is _CPU and executor.live:
                work = executor.work(model)
                if work is not None and (least is None or work < least):
                    least = work
        return least

    def gpu_time(self, model: str) -> float:
        """Return P_G, the predicted seconds of `model` on a GPU; 0 if nothing was measured."""
        return 0.0 if model in self.off_gpus else _shortest(self.gpus, model)


def _shortest(executors: list[Executor], model: str) -> float:
    """Return the least prediction of those in rotation; 0 if one has none yet, or without any.

    A plain loop, asked several times per request: min() over a generator costs three times as much.
    """
    shortest = math.inf
    for executor in executors:
        if executor.in_rotation and model not in executor.missing:
            expected = executor.expected(model)
            if not expected:
                return 0.0
            shortest = min(shortest, expected)
    return 0.0 if shortest == math.inf else shortest

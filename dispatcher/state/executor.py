"""The dispatcher's view of one executable: its slots, its service times, whether it is live."""

from typing import Final

from dispatcher.state.device_state import DeviceState
from dispatcher.state.execution import Execution
from dispatcher.state.lifecycle import (
    EXECUTOR,
    ROTATION,
    ExecutorState,
    ExecutorStep,
    Rotation,
    RotationStep,
)
from dispatcher.state.service_time import ServiceProfile
from roma.domain.model import Device, ExecutorSpec, slot_count

UNBOUNDED: Final = 1_000_000
"""In-flight limit of a planned device: its policy counts the assigned work in seconds."""

MEASURED: Final = 5
"""Executions of a model after which their median is considered usual."""

COST_STEP: Final = 0.1
"""Share by which a cost must have changed to be news."""

_FULL: Final = Rotation.FULL
_PROBING: Final = Rotation.PROBING
_EJECTED: Final = Rotation.EJECTED
_IDLE: Final = ExecutorState.IDLE
_BUSY: Final = ExecutorState.BUSY
_SUSPECTED: Final = ExecutorState.SUSPECTED
_START: Final = EXECUTOR.step(ExecutorStep.START)
_FINISH: Final = EXECUTOR.step(ExecutorStep.FINISH)
_DRAIN: Final = EXECUTOR.step(ExecutorStep.DRAIN)


class Executor:
    """The dispatcher's view of one executable.

    The in-flight limit of a CPU executor, unless its spec fixes it, is
    max(1, ceil(cores / threads)): more in flight would only queue inside the model server, where
    no scheduler can reorder it (8 in flight cost 37-69 % more core-seconds). A GPU runs one.

    `starts` counts how often it became ready, `losses` how often it was lost. `planned` has the
    state of a planned device while it is live, None for any other.
    """

    __slots__ = (
        "_busy",
        "_busy_since",
        "_granted",
        "_profiles",
        "_since",
        "completed",
        "cores",
        "cost",
        "ejections",
        "errors",
        "fault_share",
        "limit",
        "losses",
        "marks",
        "missing",
        "part",
        "planned",
        "rotation",
        "running",
        "share",
        "spec",
        "starts",
        "state",
    )

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec
        self.state = ExecutorState.LOADING
        self.planned: DeviceState | None = None
        # See dispatcher/guards/outlier_ejection.py: errors in a row, ejections in a row that
        # lengthened the next one, the share of recent executions that failed, and how many requests
        # others had answered when that began.
        self.errors = self.ejections = 0
        self.rotation = Rotation.FULL
        self.fault_share = 0.0
        self.marks: dict[str, int] = {}
        self.missing: frozenset[str] = frozenset()
        """Models of its spec that its server does not have."""
        self.cost: float | None = None
        """Core-seconds of a request as its supervisor measured them; None if unknown."""
        self.share = self._granted = self._since = 0.0
        self.resize(spec.cores, 0.0)
        self.running: dict[int, Execution] = {}
        self.completed = 0
        self.starts = 0
        self.losses = 0
        self._busy = self._busy_since = 0.0
        known = () if spec.is_planned else spec.models
        self._profiles = {model: ServiceProfile() for model in known}

    def __repr__(self) -> str:
        return (
            f"<Executor {self.spec.name} on {self.spec.device}: {self.state}, "
            f"{len(self.running)}/{self.limit} in flight, {self.cores:.2f} cores>"
        )

    def resize(self, cores: float, now: float, part: float = 1.0) -> None:
        """Take the applied cores; they set `limit` and `share`.

        `limit` is how many executions may run at once, `share` the cores that each can use when
        every slot is taken (1 on a GPU). `part` is this dispatcher's share of the slots if other
        processes use the rest: a request takes as long as before.
        """
        self.part = part
        self._granted, self._since = self._granted_until(now), now
        self.cores = cores
        if self.spec.device is Device.GPU:
            self.limit, self.share = UNBOUNDED if self.spec.is_planned else 1, 1.0
            return
        self.limit, self.share = self._slots(cores, part)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that it serves."""
        models = self.spec.models
        return tuple([m for m in models if m not in self.missing]) if self.missing else models

    def is_told(self, cores: float, part: float, cost: float | None) -> bool:
        """Return True if these cores and, within `COST_STEP`, this cost are known already."""
        if (self.cores, self.part) != (cores, part):
            return False
        return cost is None or abs(cost - (self.cost or 0.0)) <= COST_STEP * cost

    @property
    def most(self) -> tuple[int, float]:
        """Its `limit` and `share` with the most cores that its controller may grant."""
        most = self.spec.most_cores
        if most <= self.cores:
            return self.limit, self.share
        # Of the one slot of an idle executable each dispatcher has the whole.
        return self._slots(most, min(self.part, 1 / self.spec.dispatchers))

    def _slots(self, cores: float, part: float) -> tuple[int, float]:
        slots = slot_count(cores, self.spec.threads, self.spec.in_flight)
        limit = slots if part == 1 else max(1, round(part * slots))
        return limit, min(cores / slots, self.spec.threads)

    @property
    def live(self) -> bool:
        """True if the executable is loaded and reachable, as far as is known."""
        state = self.state
        return state is _IDLE or state is _BUSY or state is _SUSPECTED

    @property
    def suspected(self) -> bool:
        """True if it gets no request until its server answers a health check."""
        return self.state is _SUSPECTED

    @property
    def has_room(self) -> bool:
        """True if another execution can start now."""
        rotation, state = self.rotation, self.state
        if (state is not _IDLE and state is not _BUSY) or rotation is _EJECTED:
            return False
        return len(self.running) < (self.limit if rotation is _FULL else 1)

    @property
    def ejected(self) -> bool:
        """True if it gets no request for a while: see `dispatcher/guards/outlier_ejection.py`."""
        return self.rotation is _EJECTED

    @property
    def in_rotation(self) -> bool:
        """True if it is live and not ejected: predictions may count on it."""
        state = self.state
        return self.rotation is not _EJECTED and (
            state is _IDLE or state is _BUSY or state is _SUSPECTED
        )

    @property
    def probing(self) -> bool:
        """True if it gets one request at a time."""
        return self.rotation is _PROBING

    def rotate(self, step: RotationStep) -> None:
        """Make a step of its part in the rotation."""
        self.rotation = ROTATION[self.rotation, step]

    def expected(self, model: str) -> float | None:
        """Return the predicted seconds of one request of a model or variant; None if unmeasured.

        Also None for a planned device: the time of a request there depends on its batch and on what
        is loaded, and the policy refuses requests that are too late.
        """
        work = self.work(model)
        return None if work is None else work / self.share

    def work(self, model: str) -> float | None:
        """Return the core-seconds of one request of `model` here; None if never measured."""
        profile = self._profiles.get(model)
        return None if profile is None else profile.work

    def tail(self, model: str, share: float | None = None) -> float | None:
        """Return the seconds within which most requests of `model` end; None if never measured.

        With `share` cores for each, by default the present ones.
        """
        profile = self._profiles.get(model)
        work = None if profile is None else profile.tail()
        return None if work is None else work / (share or self.share)

    def step(self, step: ExecutorStep) -> None:
        """Make a life-cycle step."""
        self.state = EXECUTOR[self.state, step]
        if step is ExecutorStep.READY:
            self.starts += 1
            self.errors = self.ejections = 0
            self.rotate(RotationStep.RESTART)
            self.fault_share = 0.0
        elif step is ExecutorStep.LOSE:
            self.losses += 1
            self.planned = None

    def confirm(self) -> None:
        """Record that a suspected executable answers: it goes on where it was."""
        self.state = EXECUTOR[
            self.state, ExecutorStep.RESUME if self.running else ExecutorStep.READY
        ]

    def busy(self, now: float) -> float:
        """Return the seconds, until now, during which at least one execution ran."""
        return self._busy + (now - self._busy_since if self.running else 0.0)

    def free_at(self, now: float) -> float:
        """Return when a slot is predicted to be free: now, or when the oldest execution ends."""
        if self.has_room or not self.running:
            return now
        oldest = next(iter(self.running.values()))
        return max(now, oldest.started + (self.expected(oldest.variant) or 0.0))

    def start(self, execution: Execution) -> None:
        """Record that an execution begins."""
        self.state = _START[self.state]
        execution.granted = self._granted_until(execution.started)
        if not self.running:
            self._busy_since = execution.started
        self.running[execution.id] = execution

    def finish(self, execution: Execution, now: float) -> None:
        """Record that an execution ended."""
        last = len(self.running) == 1
        step = _DRAIN if last else _FINISH
        self.state = step[self.state]
        del self.running[execution.id]
        if last:
            self._busy += now - self._busy_since

    def abandon(self, now: float) -> None:
        """Drop the running executions: the executor was lost."""
        self._busy = self.busy(now)
        self.running.clear()

    def record(self, execution: Execution, now: float, *, is_bound: bool) -> None:
        """Learn the work of an execution, for its model as for its variant.

        It is what its slot was granted while it ran: a change of cores during the execution must
        not make the work look larger or smaller than it is. If `is_bound`, the execution had not
        ended at its timeout, and this is a lower bound: predictions learnt only from executions
        that ended in time would stay too low. A planned device measures itself.

        Admission asks for the model, as policies choose its variants; a policy that chooses between
        them asks for a variant.
        """
        if self.spec.is_planned:
            return
        work = self._granted_until(now) - execution.granted
        self._learn_as(execution.model, work, is_bound=is_bound)
        if execution.variant != execution.model:
            self._learn_as(execution.variant, work, is_bound=is_bound)

    def record_large(
        self, execution: Execution, size: int, upper: int, now: float, *, is_bound: bool
    ) -> None:
        """Learn what a request larger than usual costs; if `is_bound`, this is a lower bound."""
        profile = self._profiles.get(execution.model)
        if profile is None or not profile.work:
            return
        work, usual = self._granted_until(now) - execution.granted, profile.work
        if is_bound and work <= profile.large.of(size, usual=usual, upper=upper):
            return
        profile.large.record(size, work, usual=usual, upper=upper)

    def keep_large(self, model: str, size: int) -> None:
        """Keep the cost of a size that is no longer usual."""
        profile = self._profiles.get(model)
        if profile is not None and profile.work:
            profile.large.keep(size, profile.work)

    def large(self, model: str, size: int, upper: int) -> tuple[float, float, bool] | None:
        """Return the core-seconds of a request larger than usual, and of a usual one.

        None if too little is known. The third value is True if requests of this size were measured.
        """
        profile = self._profiles.get(model)
        if profile is None or profile.samples < MEASURED or not profile.work:
            return None
        work = profile.large.of(size, usual=profile.work, upper=upper)
        return work, profile.work, profile.large.is_measured(size)

    def largest(self, model: str, seconds: float, factor: float, upper: int) -> int:
        """Return the size up to which a request takes at most so many `seconds` on all its threads.

        Or as long as `factor` usual requests, if that is longer.
        """
        profile = self._profiles.get(model)
        if profile is None or not profile.work:
            return 0
        work = max(seconds * self.spec.threads, factor * profile.work)
        at_least = int(factor * upper)
        return profile.large.largest(work, at_least, usual=profile.work, upper=upper)

    def forget_large(self, model: str, size: int) -> None:
        """Drop what is known of a size; the next request of that size is measured anew."""
        profile = self._profiles.get(model)
        if profile is not None:
            profile.large.forget(size)

    def _learn_as(self, name: str, work: float, *, is_bound: bool) -> None:
        profile = self._profiles.get(name)
        if profile is None:
            profile = self._profiles[name] = ServiceProfile()
        if not is_bound or profile.work is None or work > profile.work:
            profile.record(work)

    def _granted_until(self, now: float) -> float:
        return self._granted + self.share * (now - self._since)

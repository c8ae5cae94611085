"""Executables in the supervisor core: settings, readings, state, and the command to apply."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from controllers.cost import Cost
from roma.domain.model import ModelSpec
from supervisor.decision_log import Decision
from supervisor.sharing import GRID


@dataclass(frozen=True, slots=True)
class Managed:
    """An executable whose cores are controlled.

    `initial` is its allocation while it loads; `replicas` are the executables that serve its
    model on CPUs, itself among them, and `smaller` the most cores of those that can have fewer than
    it, ascending; `cost` is the profiled core-seconds per request, None if unknown.
    `threads` and `in_flight` determine its in-flight limit, as in `ExecutorSpec`. With
    `idles_by_cost` it keeps the cores for one request when idle, at least `minimum`. `weight` is
    its weight in a shortage. `burst` is the share of its quota that a quota period, in seconds, may
    inherit. `on_gpu`: GPUs serve the model too.
    """

    name: str
    model: ModelSpec
    minimum: float
    maximum: float
    initial: float
    replicas: tuple[str, ...] = ()
    smaller: tuple[tuple[float, str], ...] = ()
    cost: float | None = None
    threads: int = 1
    in_flight: int | None = None
    idles_by_cost: bool = False
    weight: float = 1.0
    burst: float = 0.0
    quota_period: float = 0.1
    on_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Reading of the kernel: `cores` granted by the quota (None: unlimited).

    `usage` in core-seconds, `periods` and `throttled` in quota periods (None: unknown) are
    cumulative. `burst` is the share of the quota that a period may inherit, None if unknown.
    `waited` is the cumulative seconds in which one of its tasks waited for a CPU (None: unknown).
    `age` in seconds is that of a reading from another host.
    """

    cores: float | None
    usage: float
    periods: int
    throttled: int | None
    age: float = 0.0
    burst: float | None = None
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Set an executable's cores now."""

    executable: str
    cores: float


@dataclass(slots=True)
class ExecutableStatus:
    """The live state of one executable; `applied` is None until the first reading.

    While not `is_confirmed`, as the last command was not, `applied` is what is read back.
    `core_seconds` is the applied cores over time, or the usage where a period exceeded it. `waited`
    is the share of the last period in which one of its tasks waited for a CPU, `throttled` that of
    its quota periods in which it ran out of quota (None: unknown).
    `lacks_burst` is true if its burst was never set, or was lost with its cgroup. An executable
    that was ready and is lost keeps its normal share for RESTART_PATIENCE, since its clients wait,
    unless it was lost twice within RESTART_LOOP. `lost_at` is the time of the last loss.
    """

    managed: Managed
    demand: float | None = None
    allocation: float | None = None
    applied: float | None = None
    observed: float | None = None
    is_confirmed: bool = True
    usage: float = 0.0
    used: float = 0.0
    core_seconds: float = 0.0
    lacks_burst: bool = False
    throttled: float | None = 0.0
    changes: int = 0
    failures: int = 0
    cost: Cost = field(default_factory=Cost)
    law_state: Any = None
    is_live: bool = False
    is_waited_for: bool = False
    lost_at: float = -math.inf
    reading: Reading | None = None
    read_at: float | None = None
    waited: float | None = None
    decisions: deque[Decision] = field(default_factory=deque)

    @property
    def known_cost(self) -> float | None:
        """Core-seconds of a request, measured or else profiled; None if unknown."""
        return self.cost.value(self.managed.cost)

    @property
    def available(self) -> float | None:
        """The most cores that it could have now: its maximum, or what a shortage leaves it."""
        if self.demand is None or self.allocation is None:
            return None
        is_short = self.allocation < self.demand - GRID
        return self.allocation if is_short else self.managed.maximum

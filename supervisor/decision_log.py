"""The decision log: every tick leaves one `Decision` per executable, live and simulated alike.

A decision holds all inputs of the law, so feeding the measurements to the law again reproduces each
demand, to the bit (`tests/support/decision_log.py`). As JSON a decision is one flat object; the
numbers survive unchanged.
"""

from dataclasses import dataclass
from typing import Any

from controllers.measurement import Demand, Measurement
from supervisor.contention import Contention
from supervisor.sharing import GRID

STARVED = 0.8
"""Largest share of its cores that an executable uses while others keep it from the CPUs."""

THROTTLED = 0.05
"""Share of throttled quota periods from which the executable's own quota explains its waiting."""


@dataclass(slots=True)
class Decision:
    """A tick's decision for an executable, and its reasons. Times in seconds, CPU in cores.

    With `measurement`, the law was asked for the period of `dt` within `minimum` and `maximum`,
    without a state if `fresh`; `used` is the executable's average usage since the last reading.
    `wanted` is the demand as it entered the sharing (for a held one: what is applied), `floor` the
    cores for one request to meet the set point, `total` the demand of all executables of the worker
    on its `capacity`. `exact` is the share, `allocation` the same rounded down (None: never read,
    nothing can be applied). `applied` is in force after the tick, `failure` is why it is not the
    allocation. `observed` is the kernel's reading one period later, and `burst` the share of its
    quota that a quota period may then inherit (None: unknown, or none is wanted). `contention` is
    what others took of the host's CPUs (None: unknown).
    """

    time: float
    executable: str
    model: str
    dt: float
    fresh: bool
    measurement: Measurement | None
    used: float | None
    demand: Demand
    minimum: float
    maximum: float
    floor: float
    wanted: float
    total: float
    capacity: float
    exact: float
    allocation: float | None
    applied: float | None
    failure: str | None = None
    observed: float | None = None
    burst: float | None = None
    contention: Contention | None = None

    @property
    def eta(self) -> float | None:
        """η, the worker's capacity over the total demand; None without demand."""
        return self.capacity / self.total if self.total > 0 else None

    @property
    def short(self) -> bool:
        """True if the worker had less for this executable than it wanted."""
        return self.total > self.capacity and self.exact < self.wanted - GRID / 2

    @property
    def contended(self) -> bool:
        """True if others kept it from the CPUs: it is late and uses less than its quota."""
        m, found, used = self.measurement, self.contention, self.used
        if m is None or found is None or used is None or not (m.waiting or m.in_flight):
            return False
        # Refused and abandoned requests count too: the admitted ones may all be in time.
        late = m.violations > 0 or max(m.response_time or 0.0, m.oldest_age) > m.set_point
        starved = used < STARVED * m.applied and (m.throttled or 0.0) <= THROTTLED
        return late and starved and found.matters


_FIELDS = tuple(Decision.__dataclass_fields__)


def plain(decision: Decision, **more: object) -> dict[str, Any]:
    """Return a decision for orjson, with `eta` and `more` beside its own fields."""
    fields = {name: getattr(decision, name) for name in _FIELDS}
    if decision.contention is None:
        del fields["contention"]  # unknown on hosts that do not report it, and in simulations
    return {**more, **fields, "eta": decision.eta}

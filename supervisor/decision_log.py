"""The story of control: every tick leaves one `Decision` per executable, live and simulated alike.

A decision holds all that the law saw, so feeding the measurements to the law again gives each
demand again, to the bit (`replay`). As JSON a decision is one flat object; the numbers survive
unchanged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from controllers.base import Law
from controllers.measurement import Demand, Measurement
from roma.domain.errors import StoryError
from supervisor.contention import Contention
from supervisor.sharing import GRID

STARVED = 0.8
"""Share of its cores that an executable uses at most which others keep from the CPUs."""

THROTTLED = 0.05
"""Share of throttled quota periods from which on its own quota explains that it waits."""


@dataclass(slots=True)
class Decision:
    """Why an executable got what it got at one tick. Times in seconds, CPU in cores.

    With `measurement`, the law was asked for the period of `dt` within `minimum` and `maximum`,
    without a state if `fresh`; `used` is what the executable used on average since the last
    reading. `wanted` is the demand as it was shared out (a held one: what is applied), `floor` what
    one request needs to meet the set point, `total` what all executables of the worker want of its
    `capacity`. `exact` is the share, `allocation` the same rounded down (None: never read, nothing
    can be applied). `applied` is what holds after the tick, `failure` why it is not the allocation.
    `observed` is what the kernel says one period later, and `burst` the share of its quota that a
    quota period may then inherit (None: unknown, or none is wanted). `contention` is what others
    took of the host's CPUs (None: unknown).
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
        """η, the worker's capacity over what is wanted of it; None if nothing is."""
        return self.capacity / self.total if self.total > 0 else None

    @property
    def short(self) -> bool:
        """Whether the worker had less for this executable than it wanted."""
        return self.total > self.capacity and self.exact < self.wanted - GRID / 2

    @property
    def contended(self) -> bool:
        """Whether somebody else kept it from the CPUs: it is late, may use more, and cannot."""
        m, found, used = self.measurement, self.contention, self.used
        if m is None or found is None or used is None or not (m.waiting or m.in_flight):
            return False
        # Those that were refused, or gave up, count too: what is admitted may be in time.
        late = m.violations > 0 or max(m.response_time or 0.0, m.oldest_age) > m.set_point
        starved = used < STARVED * m.applied and m.throttled <= THROTTLED
        return late and starved and found.matters


_DECISION = TypeAdapter(Decision)
_FIELDS = tuple(Decision.__dataclass_fields__)


def plain(decision: Decision, **more: object) -> dict[str, Any]:
    """Return a decision for orjson, with `eta` and `more` beside its own fields."""
    fields = {name: getattr(decision, name) for name in _FIELDS}
    if decision.contention is None:
        del fields["contention"]  # unknown on hosts that do not say, and in simulations
    return {**more, **fields, "eta": decision.eta}


def parse(line: bytes | str) -> Decision:
    """Return the decision that a line of JSON holds; raise `StoryError` naming the field."""
    try:
        return _DECISION.validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise StoryError(f"not a decision: {where}: {fault['msg']}") from error


def replay(law: Law, decisions: Iterable[Decision]) -> Iterator[tuple[Decision, Demand]]:
    """Feed the recorded measurements of one executable to its law; yield what it demands.

    What came before the law's first known state (`fresh`), or after a decision that is missing,
    cannot be replayed and is left out until the law begins anew.
    """
    state: Any = None
    known = False
    last: float | None = None
    for decision in decisions:
        # Each knows how long after the one before it came, to the bit.
        known = known and last is not None and decision.time - last == decision.dt
        last = decision.time
        if decision.measurement is None:
            continue
        known = known or decision.fresh
        if not known:
            continue
        demand, state = law(
            None if decision.fresh else state,
            decision.measurement,
            dt=decision.dt,
            lo=decision.minimum,
            hi=decision.maximum,
        )
        yield decision, demand

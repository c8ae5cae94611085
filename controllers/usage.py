"""`usage`: Kubernetes' autoscalers on CPU utilisation, at our period, blind to response times.

    u = max over the last `stabilization` seconds of  mean(usage over `window`) / target

HPA's rule (kubernetes.io, *Horizontal Pod Autoscaling*, "Algorithm details") is desired = current ·
utilisation / target; with usage = current · utilisation that is usage / target, in cores instead of
replicas, as a VPA that may resize every period would set a limit. From the same page come the
tolerance (0.1: nothing changes while utilisation is that near its target), the stabilisation (the
largest recommendation of the window stands; only a fall is delayed) and the start (what is applied
is the first recommendation). Two parts are left out: the limit on the speed of a rise (100 % per 15
s), because a period's rise is bounded anyway, and VPA's histogram with a half-life of a day.

The rule has two traps, which a comparison is meant to show. Usage never exceeds what is applied, so
demand rises by at most 1/target per window however long the queue is. And a model that waits, for a
lock or for others, looks satisfied.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from controllers.history import History, Used, mean, remember
from controllers.measurement import UNREAD, Demand, Measurement, hold


@dataclass(frozen=True, slots=True)
class UsageGains:
    """Target utilisation, `window` and `stabilization` in seconds, tolerated deviation.

    Autothrottle (Wang et al., NSDI 2024) compares with two sets: its K8s-CPU decides on 15 s
    averages with 300 s of stabilisation (Kubernetes' defaults), its K8s-CPU-Fast on 1 s and 20 s.
    The default is the fast one: the slow one would hold the start value for a whole experiment.
    """

    target: Annotated[float, Field(gt=0, le=1)] = 0.6
    window: Annotated[float, Field(gt=0, le=3600)] = 1.0
    stabilization: Annotated[float, Field(ge=0, le=3600)] = 20.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Cores that were recommended `age` seconds ago."""

    age: float
    cores: float


@dataclass(frozen=True, slots=True)
class UsageState:
    """The usage history, and the recommendations that no later, larger one supersedes."""

    history: History = ()
    recommended: tuple[Recommendation, ...] = ()


def usage_step(
    gains: UsageGains,
    state: UsageState | None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, UsageState]:
    """Return the demand and the next state; see the module docstring."""
    m = measurement
    past = state or UsageState(recommended=(Recommendation(0.0, m.applied),))
    if m.usage is None:
        return hold(UNREAD), past
    history = remember(past.history, Used(dt, m.usage / dt), gains.window)
    used = mean(history)
    raw = used / gains.target
    near = abs(raw - m.applied) <= gains.tolerance * m.applied
    now = Recommendation(0.0, m.applied if near else raw)
    # A smaller, older one can never be the largest again, so few are kept.
    older = (Recommendation(r.age + dt, r.cores) for r in past.recommended)
    recommended = (
        now,
        *(r for r in older if r.age < gains.stabilization and r.cores > now.cores),
    )
    u = max(r.cores for r in recommended)
    why = f"{used:.2f} cores used, {gains.target:.0%} of the allocation is aimed for"
    demand = Demand(now.cores, why, {"recommended": now.cores}, {"used": used})
    return demand.with_adjustment(u, "stabilization").clipped(lo, hi), UsageState(
        history, recommended
    )

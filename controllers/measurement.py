"""Measurement of an executable over one period, and the demand that a law returns for it."""

from dataclasses import dataclass, field
from math import isfinite


@dataclass(slots=True)  # one in every tick: a frozen one takes two to three times as long to make
class Measurement:
    """A control period of one executable and its model. Seconds, cores, counts per period.

    `response_time` is the SLA's statistic over the window (queue plus execution), None if nothing
    was answered, and the worst of several dispatchers'; `mean_time` is the mean over all of them.
    `shed` counts requests refused because they could not be answered in time; they are violations
    although no response time stands for them. `usage` is the core-seconds this executable used,
    None if unknown, `completed_here` the requests it answered, `in_flight_here`
    those it runs at the end; `workers` is the number of executables that serve the model on CPUs,
    `smaller` the most cores of those that can have fewer than this one, ascending. `applied` is
    what the actuator confirmed last. `throttled` is the share of the period's quota periods in
    which the executable ran out of quota, None if unknown. `profile` is the model's measured cost
    in core-seconds per request, None if unknown. `violations` counts the requests that broke the
    promise, those that were `shed`, `failed` or `given_up` by their clients among them; `budget` is
    the share that may, None of a promise on the mean. A request can use `threads` cores. Quotas are
    set per `quota_period` seconds; one with burst can save up `bucket` seconds of it. `on_gpu`:
    GPUs serve the model too.
    """

    response_time: float | None
    oldest_age: float
    arrivals: float
    completed_gpu: float
    completed_here: float
    failed: float
    shed: float
    waiting: int
    in_flight: int
    usage: float | None
    applied: float
    sla: float
    set_point: float
    deadline: float
    workers: int = 1
    completed_cpu: float = 0.0
    in_flight_here: int = 0
    throttled: float | None = 0.0
    profile: float | None = None
    violations: float = 0.0
    threads: int = 1
    budget: float | None = None
    quota_period: float = 0.1
    bucket: float = 0.1
    on_gpu: bool = False
    smaller: tuple[float, ...] = ()
    mean_time: float | None = None
    given_up: float = 0.0

    @property
    def idle(self) -> bool:
        """Nothing arrives, waits or runs. In flight but nothing completed is *not* idle."""
        return not (self.arrivals or self.waiting or self.in_flight)

    @property
    def effective_response_time(self) -> float | None:
        """y: the worst of the measured time, the age of waiting requests and that of refused ones.

        The age of the oldest request stands for what has not completed: without it an executable
        that finishes nothing looks idle. A request refused as too late would have taken at least
        the deadline. None if the period has no information: failures alone are no fast responses.
        """
        candidates = [] if self.response_time is None else [self.response_time]
        if self.waiting or self.in_flight:
            candidates.append(self.oldest_age)
        if self.shed:
            candidates.append(self.deadline)
        y = max(candidates, default=None)
        if y is None or not isfinite(y) or y <= 0:
            return None
        if self.response_time is None and not self.shed and y < self.set_point:
            # Young requests and nothing completed: neither fast nor slow yet.
            return None
        return y

    @property
    def finite(self) -> bool:
        """True if every number is finite."""
        return (
            (self.response_time is None or isfinite(self.response_time))
            and (self.mean_time is None or isfinite(self.mean_time))
            and isfinite(self.oldest_age)
            and (self.usage is None or isfinite(self.usage))
            and isfinite(self.applied)
            and isfinite(self.sla)
            and isfinite(self.set_point)
        )


@dataclass(slots=True)  # as Measurement
class Demand:
    """The demand of a law: `cores`, or None to hold what is applied, and the reason.

    `terms` are the law's addends, in cores: their sum is `cores`. `facts` are its inputs: y in
    seconds, cost in core-seconds per request, and its other estimates.
    """

    cores: float | None
    why: str
    terms: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def rests(self) -> bool:
        """True if nothing needs these cores, and they are given back by and by."""
        return DECAY in self.terms

    def with_adjustment(self, cores: float, term: str) -> "Demand":
        """Return the demand for `cores` instead; `term` records the difference."""
        if self.cores is None or cores == self.cores:
            return self
        terms = {**self.terms, term: self.terms.get(term, 0.0) + cores - self.cores}
        return Demand(cores, self.why, terms, self.facts)

    def clipped(self, lo: float, hi: float) -> "Demand":
        """Return the demand bounded to [lo, hi]; the term `clip` records the difference."""
        return (
            self
            if self.cores is None
            else self.with_adjustment(max(lo, min(hi, self.cores)), "clip")
        )


def hold(why: str) -> Demand:
    """Return a demand that keeps what is applied: no data is not zero."""
    return Demand(None, why)


UNREAD = "the executable's cgroup cannot be read"
IDLE = "idle: nothing arrives, waits or runs"
DECAY = "decay"
"""Term of what an executable gives back while nothing needs it."""


def resting(applied: float, factor: float, why: str = IDLE) -> Demand:
    """Return a demand that gives cores back while there is nothing for them to do."""
    demand = Demand(applied, why, {"applied": applied})
    return demand.with_adjustment(applied * factor, DECAY)

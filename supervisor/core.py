"""The supervisor core: one control period in, cores to apply out; no clock, no file, no socket.

Four values are kept apart for each executable: the *demand* of its controller, the *allocation*
that fits the worker, what was *applied* (confirmed by the actuator) and what is *observed* (read
back from the kernel). Allocations are level-triggered: whatever reverts a quota, the next tick
sees the difference and applies it again.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controllers.base import Law
from controllers.measurement import UNREAD, Demand, Measurement, hold
from roma.domain.exchange import LEAST_CORES, MOST_CORES, ExchangeReply, ExecutorReading
from roma.domain.model import Sharing, slot_count
from supervisor.contention import Contention, HostReading, contention, waited_share
from supervisor.decision_log import Decision
from supervisor.executables import Apply, ExecutableStatus, Managed, Reading
from supervisor.sharing import GRID, CoreRequest, share
from supervisor.slot_shares import SlotShares
from supervisor.window import ReplyWindow

DECISIONS_KEPT = 900
"""Decisions kept per executable: 15 minutes at a period of 1 s, 3 at 0.2 s."""

DECISIONS_IN_ALL = 20_000
"""Decisions kept of all executables of a program; one takes about 2 KB."""

RESTART_LOOP = 300.0
"""Seconds. Losses closer together than this form a restart loop."""

RESTART_PATIENCE = 60.0
"""Seconds for which a lost executable keeps its share while it restarts."""

LEAST_OF_BURST = 0.99
"""Least share of its burst that a quota must have: the kernel's files are in whole microseconds."""

BUSY_LOADING = 0.5
"""Least share of its minimum that an executable uses while it loads."""


@dataclass(slots=True)
class _Decided:
    """Demand of an executable; `fresh` if its law was restarted.

    Treat it as immutable; it is not frozen because every tick creates one for each executable.
    """

    want: CoreRequest
    demand: Demand
    measurement: Measurement | None
    minimum: float
    fresh: bool
    used: float | None


class Supervisor:
    """Controllers, sharing and accounting of one worker.

    `dispatchers` is the number of dispatchers that are always restarted: one that is away keeps a
    slot of each executable for its return.
    """

    def __init__(
        self,
        managed: Iterable[Managed],
        law: Law,
        *,
        capacity: float,
        sharing: Sharing = Sharing.MAX_MIN,
        gamma: float = 0.0,
        dispatchers: int = 1,
    ) -> None:
        self.status: dict[str, ExecutableStatus] = {}
        self._parts = SlotShares()
        self._kept = DECISIONS_IN_ALL
        self.manage(managed)
        self.capacity = capacity
        self.sharing = sharing
        self.gamma = gamma
        self.eta = float("inf")
        self._law = law
        self._windows: dict[str, ReplyWindow] = {}
        self._usable: list[ReplyWindow] = []
        """The windows of this tick that have a period to measure."""
        self._dispatchers = dispatchers
        self._ticked_at: float | None = None
        self.contention: Contention | None = None
        self._host: HostReading | None = None

    def manage(self, managed: Iterable[Managed]) -> None:
        """Control these executables from now on; the state of those that stay is kept."""
        managed, known = list(managed), self.status
        self.status = {m.name: known.get(m.name) or ExecutableStatus(m) for m in managed}
        for m in managed:
            self.status[m.name].managed = m  # the number of its replicas may have changed
        self._parts.keep(self.status)
        self.keep(self._kept)

    def keep(self, decisions: int) -> None:
        """Keep this many decisions of all executables together, the newest of each."""
        self._kept = decisions
        length = max(1, min(DECISIONS_KEPT, decisions // max(1, len(self.status))))
        for status in self.status.values():
            if status.decisions.maxlen != length:
                status.decisions = deque(status.decisions, maxlen=length)

    def tick(
        self,
        replies: Mapping[str, ExchangeReply | None],
        readings: Mapping[str, Reading | None],
        *,
        now: float,
        host: HostReading | None = None,
    ) -> list[Apply]:
        """Take one period's reports and readings; return what must be applied.

        A missing reply means hold: the last allocation stands. So does a missing reading for a law
        that decides by usage; others decide by what dispatchers report. `replies` is keyed by
        dispatcher, `readings` by executable. `host` explains decisions and changes none.
        """
        unobservable_reason = self._take_replies(replies, now)
        self._parts.begin()
        dt = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        decided = []
        for status in self.status.values():
            applied = status.applied
            used = self._take_reading(status, readings.get(status.managed.name), now)
            if applied is not None:
                status.core_seconds += max(applied, used or 0.0) * dt
            decided.append(self._decide(status, used, unobservable_reason, dt))
        self._take_host(host, decided, dt)
        self._share(decided, now, dt)
        commands = []
        for s in self.status.values():
            if s.allocation is None or not (s.lacks_burst or _differs(s.allocation, s.observed)):
                continue
            s.is_confirmed = False
            commands.append(Apply(s.managed.name, s.allocation))
        return commands

    def idle_minimum(self, executable: str) -> float:
        """Return the cores that an executable keeps without load, as far as its cost is known."""
        status = self.status[executable]
        managed = status.managed
        return max(managed.minimum, self._floor(status) if managed.idles_by_cost else 0.0)

    def last(self) -> list[Decision]:
        """Return the latest decision of each executable."""
        return [s.decisions[-1] for s in self.status.values() if s.decisions]

    def on_applied(self, executable: str, cores: float) -> None:
        """Record what the actuator confirmed."""
        status = self.status[executable]
        if _differs(cores, status.applied):
            status.changes += 1
        status.applied = status.observed = cores
        status.is_confirmed, status.lacks_burst = True, False
        if status.decisions:
            status.decisions[-1].applied = cores

    def on_failed(self, executable: str, why: str = "") -> None:
        """Record a failed actuation: what was applied before still stands."""
        status = self.status[executable]
        status.failures += 1
        if status.decisions:
            status.decisions[-1].failure = why

    def readings(self, dispatcher: str) -> tuple[ExecutorReading, ...]:
        """Return the readings that a dispatcher needs for its in-flight limits.

        Where several share the slots, it also gets executables that were never read, with their
        initial cores.
        """
        found = []
        for name, s in self.status.items():
            cores = s.applied
            if cores is None:
                if self._dispatchers == 1:
                    continue
                cores = s.managed.initial
            # One limit that nobody can mean must not keep the others from being confirmed.
            cores = min(MOST_CORES, max(LEAST_CORES, cores))
            part = self._part(dispatcher, s, cores)
            found.append(ExecutorReading(name, cores, s.usage, s.throttled, part, s.known_cost))
        return tuple(found)

    def _part(self, dispatcher: str, status: ExecutableStatus, cores: float) -> float:
        """Return a dispatcher's share of an executable's slots."""
        managed = status.managed
        rates = {dispatcher: 0.0}  # a dispatcher that asks for the first time has no rate yet
        in_flight = {}
        for name, window in self._windows.items():
            if window.heard:
                rates[name] = window.arrivals(managed.model.name, managed.name)
                in_flight[name] = window.in_flight(managed.name)
        total = slot_count(cores, managed.threads, managed.in_flight)
        free = max(1, total - max(0, self._dispatchers - len(rates)))
        mine = self._parts.of(dispatcher, managed.name, free, rates, in_flight)
        return min(1.0, mine / total)

    def _take_replies(self, replies: Mapping[str, ExchangeReply | None], now: float) -> str:
        """Update the windows; return why the load is unobservable, or an empty string."""
        reasons = []
        for dispatcher, reply in replies.items():
            window = self._windows.setdefault(dispatcher, ReplyWindow())
            if reply is not None:
                window.take(reply, now)
            reason = window.unobservable_reason(now)
            if reason:
                reasons.append(f"dispatcher {dispatcher} {reason}")
        self._usable = [w for w in self._windows.values() if w.usable]
        if not self._usable:
            reasons = reasons or ["no dispatcher answers"]
        return "; ".join(reasons)

    def _decide(
        self, status: ExecutableStatus, used: float | None, unobservable_reason: str, dt: float
    ) -> _Decided:
        managed = status.managed
        minimum = self.idle_minimum(managed.name)
        measurement, fresh = None, False
        served = not unobservable_reason and self._is_served(managed.name)
        if unobservable_reason:
            demand = hold(unobservable_reason)
        elif served and status.applied is not None:
            status.is_live = True
            usage = None if used is None else used * dt
            measurement, fresh = self._measure(status, usage, dt), status.law_state is None
            demand, status.law_state = self._law(
                status.law_state, measurement, dt=dt, lo=minimum, hi=managed.maximum
            )
            status.cost = status.cost.update(measurement, dt)
        elif status.applied is None or used is None:
            demand = hold(UNREAD)
        else:
            self._note_loss(status)
            demand = self._while_not_ready(managed, used)
            status.law_state = None
        if measurement is not None:
            loads = self._is_untried(status, demand)
        else:
            loads = not (unobservable_reason or self._is_waited_for(status))
        want = self._want(status, demand, loads=loads)
        return _Decided(want, demand, measurement, minimum, fresh, used)

    def _is_served(self, executable: str) -> bool:
        """Return True if a dispatcher can send work to an executable now."""
        for window in self._usable:  # noqa: SIM110 - any() costs twice as much
            if window.live(executable):
                return True
        return False

    def _serving(self, replicas: Sequence[str]) -> int:
        """Return the number of replicas that share the load: one that loads takes no part of it."""
        if len(replicas) < 2:
            return 1
        return max(1, sum([self._is_served(name) for name in replicas]))

    def _smaller(self, managed: Managed) -> tuple[float, ...]:
        """Return the most cores of the smaller replicas that share the load."""
        if not managed.smaller:
            return ()
        return tuple([cores for cores, name in managed.smaller if self._is_served(name)])

    def _is_waited_for(self, status: ExecutableStatus) -> bool:
        """Return True if a lost executable still counts among those that serve."""
        assert self._ticked_at is not None
        return status.is_waited_for and self._ticked_at - status.lost_at < RESTART_PATIENCE

    @staticmethod
    def _is_untried(status: ExecutableStatus, demand: Demand) -> bool:
        """Return True if it gives back the cores that it began with: no request needed them yet.

        Once the cost of a request is known, what it keeps is what the next one needs.
        """
        return demand.rests and status.known_cost is None

    def _note_loss(self, status: ExecutableStatus) -> None:
        if status.is_live:
            assert self._ticked_at is not None
            status.is_live = False
            status.is_waited_for = self._ticked_at - status.lost_at > RESTART_LOOP
            status.lost_at = self._ticked_at

    @staticmethod
    def _while_not_ready(managed: Managed, used: float) -> Demand:
        """Return the demand of an executable that is not ready, or no longer ready.

        Loading is the most expensive thing a model does. But an executable that computes nothing,
        because it hangs or waits for its next start, would only hold cores that others could use.
        """
        if used < BUSY_LOADING * managed.minimum:
            why = "the executable is not ready and computes nothing"
            return Demand(managed.minimum, why, {"minimum": managed.minimum})
        why = "the executable is not ready"
        return Demand(managed.initial, why, {"initial": managed.initial})

    def _share(self, decided: Sequence[_Decided], now: float, dt: float) -> None:
        """Fit the demands to the worker, and record the decision for each executable."""
        wants = [d.want for d in decided]
        result = share(wants, self.capacity, self.gamma, sharing=self.sharing)
        self.eta = result.eta
        for status, d, unrounded, granted in zip(
            self.status.values(), decided, result.unrounded, result.granted, strict=True
        ):
            # An executable that was never read makes no request, rather than one for 0 cores.
            status.demand = None if status.applied is None else d.want.demand
            status.allocation = None if status.applied is None else granted
            status.decisions.append(
                Decision(
                    time=now,
                    executable=status.managed.name,
                    model=status.managed.model.name,
                    dt=dt,
                    fresh=d.fresh,
                    measurement=d.measurement,
                    used=d.used,
                    demand=d.demand,
                    minimum=d.minimum,
                    maximum=status.managed.maximum,
                    floor=d.want.floor,
                    wanted=d.want.demand,
                    total=result.total,
                    capacity=self.capacity,
                    exact=unrounded,
                    allocation=status.allocation,
                    applied=status.applied,
                    contention=self._contention(status),
                )
            )

    def _take_host(self, host: HostReading | None, decided: Sequence[_Decided], dt: float) -> None:
        used = sum(d.used or 0.0 for d in decided)
        self.contention = contention(self._host, host, used, dt)
        self._host = host

    def _contention(self, status: ExecutableStatus) -> Contention | None:
        """Return an executable's contention: from its own waiting, where the kernel counts that."""
        if self.contention is None or status.waited is None:
            return self.contention
        return replace(self.contention, waited=status.waited, own=True)

    def _want(self, status: ExecutableStatus, demand: Demand, *, loads: bool) -> CoreRequest:
        managed, held = status.managed, demand.cores is None
        cores = status.applied if demand.cores is None else demand.cores
        if cores is None:
            # Never read: nothing can be applied to it, so it must not cost its neighbours.
            return CoreRequest(0.0, loads=loads)
        cores = max(managed.minimum, min(managed.maximum, cores))
        # γ adds to demands; a held value was granted before and would grow at every tick.
        maximum = cores if held else managed.maximum
        floor = self._floor(status)
        return CoreRequest(cores, managed.minimum, floor, maximum, loads, managed.weight)

    def _take_reading(
        self, status: ExecutableStatus, reading: Reading | None, now: float
    ) -> float | None:
        """Update the observed values; return the average cores used since the last reading."""
        previous, since = status.reading, status.read_at
        status.waited = None
        if reading is None:
            return None
        at = now - reading.age
        status.reading, status.read_at = reading, at
        status.usage = reading.usage
        status.observed = reading.cores
        if status.decisions:
            status.decisions[-1].observed = reading.cores
            status.decisions[-1].burst = reading.burst if status.managed.burst else None
        if _lost_burst(previous, reading, status.managed.burst):
            status.lacks_burst = True
        if status.applied is None:
            # Bumpless start: what the kernel grants now is where control begins.
            unlimited = reading.cores is None
            status.applied = status.managed.maximum if unlimited else reading.cores
        elif not status.is_confirmed and reading.cores is not None:
            # An engine may set a quota after nobody waits for its answer any more.
            status.changes += _differs(reading.cores, status.applied)
            status.applied = reading.cores
        if previous is None or since is None or at <= since:
            return None
        status.used = max(0.0, reading.usage - previous.usage) / (at - since)
        periods = reading.periods - previous.periods
        if reading.throttled is None or previous.throttled is None:
            status.throttled = None
        else:
            throttled = max(0, reading.throttled - previous.throttled)
            status.throttled = min(1.0, throttled / periods) if periods > 0 else 0.0
        if reading.waited is not None and previous.waited is not None:
            status.waited = waited_share(reading.waited - previous.waited, at - since)
        return status.used

    def _measure(self, status: ExecutableStatus, usage: float | None, dt: float) -> Measurement:
        """Add the rates of all dispatchers, as counts per `dt`; take the worst and mean time."""
        managed, spec = status.managed, status.managed.model
        name, executable = spec.name, managed.name
        response_time: float | None = None
        oldest_age: float | None = None
        answered = spent = 0.0
        arrivals = gpu = cpu = here = failed = shed = given_up = violations = 0.0
        waiting = in_flight = in_flight_here = 0
        for window in self._usable:
            here += window.completed(executable)
            in_flight_here += window.in_flight(executable)
            delta = window.model(name)
            if delta is None:
                continue
            report = delta.report
            worst = report.response_time
            if worst is not None and (response_time is None or worst > response_time):
                response_time = worst
            if report.mean_time is not None:
                by_it = delta.completed_gpu + delta.completed_cpu
                answered += by_it
                spent += by_it * report.mean_time
            if oldest_age is None or report.oldest_age > oldest_age:
                oldest_age = report.oldest_age
            arrivals += delta.arrivals
            gpu += delta.completed_gpu
            cpu += delta.completed_cpu
            failed += delta.failed
            shed += delta.shed
            given_up += delta.given_up
            violations += delta.violations
            waiting += report.waiting
            in_flight += report.in_flight
        assert status.applied is not None
        return Measurement(
            response_time=response_time,
            mean_time=spent / answered if answered else None,
            oldest_age=0.0 if oldest_age is None else oldest_age,
            arrivals=dt * arrivals,
            completed_gpu=dt * gpu,
            completed_cpu=dt * cpu,
            completed_here=dt * here,
            in_flight_here=in_flight_here,
            failed=dt * failed,
            shed=dt * shed,
            given_up=dt * given_up,
            violations=dt * violations,
            waiting=waiting,
            in_flight=in_flight,
            usage=usage,
            applied=status.applied,
            sla=spec.sla.response_time,
            set_point=spec.sla.set_point,
            deadline=spec.deadline,
            workers=self._serving(managed.replicas),
            throttled=status.throttled,
            profile=managed.cost,
            threads=managed.threads,
            budget=spec.sla.budget,
            quota_period=managed.quota_period,
            bucket=managed.quota_period * (1 + _burst(status)),
            on_gpu=managed.on_gpu,
            smaller=self._smaller(managed),
        )

    def _floor(self, status: ExecutableStatus) -> float:
        """Return the cores with which one request, alone, meets the set point: c/R°.

        It cannot use more than its threads.
        """
        managed = status.managed
        cost = status.known_cost
        if cost is None:
            return 0.0
        return min(managed.maximum, managed.threads, cost / managed.model.sla.set_point)


def _burst(status: ExecutableStatus) -> float:
    """Return the burst that a quota is known to have: as read, none where it is unknown."""
    read = 0.0 if status.reading is None else status.reading.burst or 0.0
    return min(status.managed.burst, read)


def _lost_burst(previous: Reading | None, reading: Reading, wanted: float) -> bool:
    """Return True if a quota lacks wanted burst, and had more before or is read for the first time.

    So an executable whose burst cannot be set is retried once, not once per period.
    """
    if reading.burst is None or reading.burst >= wanted * LEAST_OF_BURST:
        return False
    return previous is None or previous.burst is None or reading.burst < previous.burst


def _differs(a: float, b: float | None) -> bool:
    """Return True if two allocations differ by more than the kernel's own rounding."""
    return b is None or abs(a - b) > GRID / 2

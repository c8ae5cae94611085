"""The control loop: read, exchange, decide, apply, confirm.

It runs on the monotonic clock, skips missed ticks instead of catching up, and survives every
failure of a dispatcher or an actuator: without a report it holds.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from roma.domain.errors import ActuationError, ExchangeError, TakenError
from roma.domain.events import soonest_tick
from roma.domain.exchange import QUIET, ExchangeReply, ExchangeRequest, silence
from roma.domain.stats import Histogram, decades
from roma.telemetry import decision_log as decision_logs
from roma.telemetry.decision_log import DecisionLog
from roma.telemetry.tasks import cancel
from roma.telemetry.wallclock import wall_clock
from supervisor.actuators.base import Actuator
from supervisor.contention import HostReading
from supervisor.core import Supervisor
from supervisor.decision_log import Decision, plain
from supervisor.executables import Managed, Reading
from supervisor.live import identity
from supervisor.live.peer import Peer, WorkerHeld

log = logging.getLogger(__name__)

JITTERS_KEPT = 900

MOST_REASONS = 8
"""Reasons that are logged of one silence: another program may say something new each time."""

RETRY = 1.0
"""Seconds after which a dispatcher that could not be heard is called again."""

DURATIONS = decades(0.0001, 10.0)
"""Bucket bounds in seconds: setting a quota is a file write, or a call to an engine that may
hang."""


class ControlLoop:
    """Drives one supervisor core.

    `jitters` are the delays in seconds of recent ticks, `jitter` of all of them; `actuation` has
    the time to set the quotas of each tick. `host` reads the CPUs of the executables' host.
    `decides_early`: a dispatcher whose queue has outgrown its cores brings the next tick forward.
    """

    def __init__(
        self,
        core: Supervisor,
        actuator: Actuator,
        peers: Sequence[Peer],
        *,
        worker: str,
        period: float,
        law: str = "",
        decision_log: DecisionLog | None = None,
        host: Callable[[], HostReading | None] = lambda: None,
        decides_early: bool = False,
    ) -> None:
        self.core = core
        self.ticks = 0
        self.missed = 0
        self.jitters: deque[float] = deque(maxlen=JITTERS_KEPT)
        self.jitter = Histogram(DURATIONS)
        self.actuation = Histogram(DURATIONS)
        self.period = period
        self._actuator = actuator
        self._peers = peers
        self._talking = peers if decides_early else ()
        self._needed, self._heeded = asyncio.Event(), asyncio.Event()
        self._rested = -math.inf
        """Time before which no tick comes early."""
        self.worker = worker
        self._law = law
        self._decision_log = decision_log
        self._host = host
        self._complete: Sequence[Decision] = ()
        """Decisions of the last period, complete once the next ones are made."""
        self._contested = math.inf
        """Time since which a dispatcher has accepted another supervisor of this worker."""
        self._silent: dict[str, set[str]] = {}
        """Dispatchers that do not answer, with the reasons that were logged since they do not."""
        self._unconfirmed: set[str] = set()
        self._failing: set[str] = set()
        self._early: dict[str, float | ActuationError] = {}
        """Results for executables that were discovered and are not controlled yet."""
        self._change: tuple[Iterable[Managed], Actuator, asyncio.Future[None]] | None = None

    async def follow(self, managed: Iterable[Managed], actuator: Actuator | None = None) -> None:
        """Control these executables from the next tick on, and wait for it.

        `actuator` replaces the present one.
        """
        done = asyncio.get_running_loop().create_future()
        self._change = managed, actuator or self._actuator, done
        await done

    async def run(self) -> None:
        """Tick until cancelled."""
        clock = asyncio.get_running_loop().time
        due, listening = clock(), [asyncio.create_task(self._listen(p)) for p in self._talking]
        try:
            while True:
                due = await self._until(due)
                late = clock() - due
                self.jitters.append(late)
                self.jitter.add(late)
                began = clock()
                await self.tick()
                # One that takes long must not follow itself at once, again and again.
                took = clock() - began
                self._rested = clock() + (took if took > soonest_tick(self.period) else 0.0)
                # The next tick of the grid that is still in the future.
                passed = max(1, math.ceil((clock() - due) / self.period))
                self.missed += passed - 1
                due += passed * self.period
        finally:
            await cancel(listening)
            await self._end_decision_log()

    async def _until(self, due: float) -> float:
        """Wait until `due`, or until cores are needed earlier; return when the tick is due."""
        clock = asyncio.get_running_loop().time
        earliest = max(due - self.period + soonest_tick(self.period), self._rested)
        try:
            async with asyncio.timeout_at(due):
                await self._needed.wait()
                await asyncio.sleep(earliest - clock())
                due = clock()
        except TimeoutError:
            await asyncio.sleep(due - clock())
        self._needed.clear()
        return due

    async def _listen(self, peer: Peer) -> None:
        """Hear from a dispatcher when cores are needed, until cancelled."""
        while True:
            try:
                needs = await peer.needs(self.worker)
            except ExchangeError:  # the next report says why
                await asyncio.sleep(RETRY)
                continue
            if needs is None:
                log.info("%s does not say when cores are needed", peer.url)
                await asyncio.sleep(QUIET)
            elif needs:
                self._heeded.clear()
                self._needed.set()
                await self._heeded.wait()

    async def tick(self) -> None:
        """Run one control period."""
        self._complete = self.core.last()
        if self._change is not None:
            managed, self._actuator, done = self._change
            self._change = None
            self.core.manage(managed)
            self._failing.intersection_update(self.core.status)
            done.set_result(None)
        readings = await self._actuator.read()
        replies = await self._reports()
        self._heeded.set()
        self._note_early(readings)
        clock = asyncio.get_running_loop().time
        now = clock()
        found = self.core.tick(replies, readings, now=now, host=self._host())
        wanted = {a.executable: a.cores for a in found}
        # Also when nothing changes: it renews the lease.
        started = clock()
        results = await self._actuator.apply(wanted)
        self.actuation.add(clock() - started)
        self._note(results)
        self.ticks += 1
        await self._confirm()
        self._tell(self._complete)
        self._complete = ()

    async def _reports(self) -> Mapping[str, ExchangeReply | None]:
        replies = await asyncio.gather(*(self._report(peer) for peer in self._peers))
        return {peer.url: reply for peer, reply in zip(self._peers, replies, strict=True)}

    async def _report(self, peer: Peer) -> ExchangeReply | None:
        try:
            reply = await peer.report(self.worker)
        except ExchangeError as error:
            logged = self._silent.setdefault(peer.url, set())
            if str(error) not in logged and len(logged) < MOST_REASONS:  # not once per second
                log.warning("holding: %s", error)
                logged.add(str(error))
            return None
        self._silent.pop(peer.url, None)
        return reply

    def _note_early(self, readings: Mapping[str, Reading | None]) -> None:
        """Note what was applied to executables that have become controlled; forget what is gone."""
        early, self._early = self._early, {}
        self._note({name: early[name] for name in early if name in readings})

    def _note(self, results: Mapping[str, float | ActuationError]) -> None:
        for name, result in results.items():
            if name not in self.core.status:
                self._early[name] = result  # a grant is told once, maybe to a core that has others
                continue
            if isinstance(result, ActuationError):
                if name not in self._failing:  # once per failure, not once per second
                    log.warning("executable %s: %s", name, result)
                self._failing.add(name)
                self.core.on_failed(name, str(result))
                continue
            if name in self._failing:
                log.info("executable %s: its cores move again", name)
            self._failing.discard(name)
            self.core.on_applied(name, result)

    def _tell(self, decisions: Sequence[Decision]) -> None:
        """Write the previous period's decisions: by now the kernel's readings are known."""
        if self._decision_log is not None and decisions:
            self._decision_log.offer(decision_logs.decisions(self.worker), self._records(decisions))

    async def _end_decision_log(self) -> None:
        """Write the last decisions; the kernel's readings for them will never be known."""
        if self._decision_log is not None:
            known = {id(d) for d in self._complete}
            last = [*self._complete, *(d for d in self.core.last() if id(d) not in known)]
            name = decision_logs.decisions(self.worker)
            await self._decision_log.close(name, self._records(last))

    def _records(self, decisions: Sequence[Decision]) -> list[dict[str, Any]]:
        at = wall_clock(asyncio.get_running_loop().time())
        more = {"worker": self.worker, "law": self._law, "period": self.period}
        return [plain(d, at=at(d.time), **more) for d in decisions]

    async def _confirm(self) -> None:
        messages = {
            peer: ExchangeRequest(self.worker, self.core.readings(peer.url), identity.own())
            for peer in self._peers
            if peer.url not in self._silent
        }
        results = await asyncio.gather(
            *(peer.confirm(message) for peer, message in messages.items()), return_exceptions=True
        )
        for peer, result in zip(messages, results, strict=True):
            if result is None:
                self._unconfirmed.discard(peer.url)
                continue
            if not isinstance(result, ExchangeError):
                raise result
            if peer.url not in self._unconfirmed:  # as above
                log.warning("not confirmed: %s", result)
            self._unconfirmed.add(peer.url)
        self._contest(results)

    async def introduce(self) -> None:
        """Ask the dispatchers if this supervisor may control; raise TakenError if not.

        This comes before the first tick, since two laws would alternate in setting the same quotas.
        Without any answer, it may control.
        """
        hello = ExchangeRequest(self.worker, (), identity.own(), hello=True)
        said = False
        while True:
            held = self._contest(await self._ask(hello))
            if held is None:
                return
            if not said:
                log.warning("waiting: %s", held)
            said = True
            await asyncio.sleep(self.period)

    async def _ask(self, hello: ExchangeRequest) -> list[BaseException | None]:
        """Ask the dispatchers in their order, until one refuses.

        So of two supervisors that start together, one gets all dispatchers.
        """
        results: list[BaseException | None] = []
        for peer in self._peers:
            try:
                await peer.confirm(hello)
                results.append(None)
            except WorkerHeld as held:
                return [*results, held]
            except ExchangeError as error:
                results.append(error)
        return results

    def _contest(self, results: Sequence[BaseException | None]) -> WorkerHeld | None:
        """Return a refusal in favour of another supervisor; raise TakenError if it persists."""
        held = next((result for result in results if isinstance(result, WorkerHeld)), None)
        now = asyncio.get_running_loop().time()
        if held is None:
            self._contested = math.inf
            return None
        self._contested = min(self._contested, now)
        if now - self._contested >= 2 * silence(self.period):
            raise TakenError(f"supervisor of worker {self.worker}: {held}") from held
        return held

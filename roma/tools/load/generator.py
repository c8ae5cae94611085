"""The open-loop generator: it follows the plan's send times, whatever has been answered.

It must never delay or drop a request because others are outstanding. Above the limit of outstanding
requests, a request ends at once as failed, with the reason `client limit`. Every request that is
sent ends exactly once, also when the run is stopped or cancelled.
"""

import asyncio
import heapq
import math
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat

from roma.tools.load.client import PredictClient, RestClient, allow_connections
from roma.tools.load.errors import LoadInputError, NoAnswerError
from roma.tools.load.outcomes import (
    CANCELLED,
    CLIENT_LIMIT,
    TIMEOUT,
    HttpAnswer,
    Progress,
    RequestEnd,
    RequestResult,
    outcome_of,
)
from roma.tools.load.payload import Bodies, cycled
from roma.tools.load.report import LoadReport, Recorder

DEFAULT_TIMEOUT = 30.0
DEFAULT_OUTSTANDING = 10_000


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests for one model.

    `arrivals` are intended send times, ascending, in seconds after the start; `bodies` is a
    sequence to cycle through or a function of the request's index; `sla` is the promised response
    time in seconds, None if there is none.
    """

    model: str
    arrivals: Sequence[float]
    bodies: Bodies | Sequence[bytes]
    sla: float | None = None

    def __post_init__(self) -> None:
        if self.sla is not None and not (math.isfinite(self.sla) and self.sla > 0):
            raise LoadInputError(f"sla {self.sla:g} s of {self.model}: must be finite and > 0")


@dataclass(slots=True, eq=False)
class _Ticket:
    """A request between its send and its end."""

    recorder: Recorder
    index: int
    intended: float
    sent: float | None = None


class LoadRun:
    """A run of a plan; `run` starts it, `stop` ends it early, `report` summarises it.

    `timeout` bounds each request, in seconds after its actual send. `on_result` is called once for
    each request; `on_progress` about every `progress_period` seconds and at the end. Both run on
    the event loop and must be quick; an exception in one ends the run and is raised by `run`.
    `clock` is monotonic, in seconds. It is not the event loop's: uvloop reads its own once a cycle
    and in milliseconds, too coarse to measure with.

    Raises LoadInputError for a timeout out of its bound, a model with two streams or a stream
    without bodies.
    """

    def __init__(
        self,
        plan: Sequence[Stream],
        client: PredictClient,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_outstanding: int = DEFAULT_OUTSTANDING,
        on_result: Callable[[RequestResult], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        progress_period: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise LoadInputError(f"timeout {timeout:g} s: must be finite and > 0")
        names = [stream.model for stream in plan]
        if len(set(names)) < len(names):
            raise LoadInputError(f"streams for {', '.join(names)}: must be one for each model")
        self._plan = tuple(plan)
        self._bodies = [s.bodies if callable(s.bodies) else cycled(s.bodies) for s in plan]
        self._client = client
        self._timeout = timeout
        self._max_outstanding = max_outstanding
        self._on_result = on_result
        self._on_progress = on_progress
        self._progress_period = progress_period
        self._clock = clock
        self._recorders = tuple(Recorder(stream.model, stream.sla) for stream in plan)
        self._outstanding: dict[_Ticket, asyncio.Task[None]] = {}
        self._drivers: list[asyncio.Task[None]] = []
        self._stopped = False
        self._start = 0.0
        self._elapsed = 0.0

    async def run(self) -> LoadReport:
        """Send the plan, wait until every request has ended and return the report.

        When this call is cancelled, outstanding requests end as failed(cancelled) before the
        cancellation propagates; `report` is then complete.
        """
        self._start = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                if not self._stopped:
                    ticker = group.create_task(self._tick())
                    self._drivers = [ticker, group.create_task(self._send_all(group, ticker))]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            # Here and not in the tasks: a task cancelled before its first step runs no code at all.
            for ticket in list(self._outstanding):
                self._end(ticket, RequestEnd.FAILED, reason=CANCELLED)
            self._elapsed = self._now()
        if self._on_progress is not None:
            self._on_progress(self.progress)
        return self.report()

    def stop(self) -> None:
        """Send nothing more and end outstanding requests as failed(cancelled); safe to repeat."""
        self._stopped = True
        for task in (*self._drivers, *self._outstanding.values()):
            task.cancel()

    def report(self) -> LoadReport:
        """Return the report; before `run` has ended, outstanding requests show as lost."""
        planned = sum(len(stream.arrivals) for stream in self._plan)
        return LoadReport.of(self._recorders, elapsed=self._elapsed, planned=planned)

    @property
    def progress(self) -> Progress:
        """The progress of the run at this moment."""
        ends = {o: sum(r.outcomes[o] for r in self._recorders) for o in RequestEnd}
        return Progress(
            elapsed=self._now(),
            sent=sum(recorder.sent for recorder in self._recorders),
            answered=ends[RequestEnd.ANSWERED],
            rejected=ends[RequestEnd.REJECTED],
            failed=ends[RequestEnd.FAILED],
        )

    async def _send_all(self, group: asyncio.TaskGroup, ticker: asyncio.Task[None]) -> None:
        for intended, which, index in self._schedule():
            await self._wait_until(intended)
            body = self._bodies[which](index)
            if self._stopped:
                return
            ticket = _Ticket(self._recorders[which], index, intended)
            ticket.recorder.sent += 1
            if len(self._outstanding) >= self._max_outstanding:
                self._end(ticket, RequestEnd.FAILED, reason=CLIENT_LIMIT)
            else:
                request = self._request(ticket, body)
                self._outstanding[ticket] = group.create_task(request)
        if self._outstanding:
            await asyncio.wait(self._outstanding.values())
        ticker.cancel()

    async def _wait_until(self, intended: float) -> None:
        # Also when late: the sleep of 0 lets the requests created so far start.
        await asyncio.sleep(max(0.0, intended - self._now()))
        # uvloop rounds a sleep to milliseconds and may end it early.
        while (early := intended - self._now()) > 0:
            await asyncio.sleep(early)

    def _schedule(self) -> Iterator[tuple[float, int, int]]:
        """Return the time, stream and number of every request, in the order of their times."""
        plan = enumerate(self._plan)
        return heapq.merge(*(zip(s.arrivals, repeat(which), count()) for which, s in plan))

    async def _request(self, ticket: _Ticket, body: bytes) -> None:
        ticket.sent = self._now()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.predict(ticket.recorder.model, body)
        except TimeoutError:
            self._end(ticket, RequestEnd.FAILED, reason=TIMEOUT)
        except NoAnswerError as failure:
            self._end(ticket, RequestEnd.FAILED, reason=failure.reason)
        else:
            self._end(ticket, outcome_of(answer.status), answer)

    def _end(
        self,
        ticket: _Ticket,
        outcome: RequestEnd,
        answer: HttpAnswer | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        self._outstanding.pop(ticket, None)
        result = RequestResult(
            model=ticket.recorder.model,
            index=ticket.index,
            outcome=outcome,
            intended=ticket.intended,
            sent=ticket.sent,
            done=self._now(),
            status=None if answer is None else answer.status,
            reason=reason,
            answer=b"" if answer is None else answer.body,
        )
        ticket.recorder.record(result)
        if self._on_result is not None:
            self._on_result(result)

    async def _tick(self) -> None:
        while self._on_progress is not None:
            self._on_progress(self.progress)
            await asyncio.sleep(self._progress_period)

    def _now(self) -> float:
        return self._clock() - self._start


async def run_load(
    plan: Sequence[Stream],
    url: str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    authorization: str | None = None,
    tls: ssl.SSLContext | None = None,
    on_result: Callable[[RequestResult], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[LoadRun], None] | None = None,
) -> LoadReport:
    """Send the plan to the service at `url` and return the report; see `LoadRun` for the options.

    `on_start` is called with the run before its first request, so that the caller can `stop` it (a
    signal handler) or read its report after a cancellation. Raises this process's limit of open
    files as far as `DEFAULT_OUTSTANDING` needs and the system allows.
    """
    allow_connections(DEFAULT_OUTSTANDING)
    async with RestClient(url, authorization, tls) as client:
        load = LoadRun(
            plan,
            client,
            timeout=timeout,
            on_result=on_result,
            on_progress=on_progress,
        )
        if on_start is not None:
            on_start(load)
        return await load.run()

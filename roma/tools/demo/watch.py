"""The demo's observations of a run: reports of the programs, and the kernel's accounting."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from roma.domain import exchange
from roma.domain.errors import ActuationError, ExchangeError
from roma.domain.exchange import ModelReport
from supervisor.cgroups import Group

PERIOD = 0.25
"""Seconds between two samples: quotas change once a second, and no change may be missed."""

RATE_WINDOW = 1.0
"""Seconds over which arrival rates are shown."""

_TIMEOUT = ClientTimeout(total=2)


@dataclass(slots=True)
class Kernel:
    """Quota of an executable as read from the kernel.

    `core_seconds` is the quota integrated over time, or the usage where that was more.
    """

    group: Group
    cores: float | None = None
    changes: int = 0
    core_seconds: float = 0.0
    used_seconds: float = 0.0
    _usage: float | None = None

    def look(self, dt: float) -> None:
        """Read the quota and the usage; `dt` is the time since the last reading."""
        try:
            reading = self.group.read()
        except ActuationError:
            return
        used = 0.0 if self._usage is None else max(0.0, reading.usage - self._usage)
        self.used_seconds += used
        self._usage = reading.usage
        if reading.cores is None:
            return
        if self.cores is not None:
            self.core_seconds += max(self.cores * dt, used)
            self.changes += self.cores != reading.cores
        self.cores = reading.cores


@dataclass(slots=True)
class DemoWatch:
    """The latest state, by model; updated every `PERIOD` seconds while `watching`."""

    kernel: dict[str, Kernel]
    reports: dict[str, ModelReport] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    _recent: deque[tuple[float, dict[str, ModelReport]]] = field(
        default_factory=lambda: deque(maxlen=round(RATE_WINDOW / PERIOD) + 1)
    )

    def take(self, reports: dict[str, ModelReport], now: float) -> None:
        """Record the dispatcher's reports at time `now`."""
        self.reports = reports
        self._recent.append((now, reports))

    def rate(self, model: str) -> float:
        """Return a model's arrivals per second over the last `RATE_WINDOW` seconds."""
        if not self._recent:
            return 0.0
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        return (last[model].arrivals - first[model].arrivals) / (end - start) if end > start else 0

    def executable(self, model: str) -> dict[str, Any]:
        """Return the supervisor's report on a model's executable; empty before its first answer."""
        found: dict[str, dict[str, Any]] = self.state.get("executables", {})
        return next((e for e in found.values() if e["model"] == model), {})


@contextlib.asynccontextmanager
async def watching(
    groups: dict[str, Group], admin: str, supervisor: str
) -> AsyncIterator[DemoWatch]:
    """Keep a watch up to date until the block ends."""
    watch = DemoWatch({model: Kernel(group) for model, group in groups.items()})
    async with ClientSession(timeout=_TIMEOUT) as session:
        task = asyncio.create_task(_keep(watch, session, admin, supervisor))
        try:
            yield watch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _keep(watch: DemoWatch, session: ClientSession, admin: str, supervisor: str) -> None:
    clock = asyncio.get_running_loop().time
    last = clock()
    while True:
        now = clock()
        for kernel in watch.kernel.values():
            kernel.look(now - last)
        last = now
        # A program that does not answer keeps its last state; the kernel's readings continue.
        with contextlib.suppress(ClientError, TimeoutError, ExchangeError, OSError):
            async with session.get(f"{admin}/control/v1/report") as response:
                reply = exchange.parse(exchange.REPLY, await response.read())
                watch.take({m.model: m for m in reply.models}, now)
            async with session.get(f"{supervisor}/control/v1/state") as response:
                watch.state = await response.json()
        await asyncio.sleep(max(0.0, PERIOD - (clock() - now)))

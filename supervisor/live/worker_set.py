"""The workers that one supervisor program controls, as they come and go."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.domain.errors import ActuationError, TakenError
from roma.telemetry.decision_log import DecisionLog
from roma.telemetry.tasks import cancel
from supervisor.actuators.base import Actuator
from supervisor.actuators.host import read_host
from supervisor.assembly import build_core, managed
from supervisor.cgroups import find_hierarchy
from supervisor.core import DECISIONS_IN_ALL
from supervisor.live import api
from supervisor.live.actuation import ActuationContext, actuation
from supervisor.live.loop import ControlLoop
from supervisor.live.peer import Peer

Peers = Callable[[float], list[Peer]]
"""Returns the dispatchers for a loop of this period in seconds."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ControlledWorker(api.Controlled):
    """A worker's loop; `held` keeps its present actuator open."""

    held: contextlib.AsyncExitStack
    ticking: "asyncio.Task[None] | None" = None

    async def switch(self, config: Config, context: ActuationContext) -> bool:
        """Control the executables of `config`; return False if another supervisor has some."""
        here = config.worker(self.loop.worker)
        if here.is_discovered:  # its actuator finds the executables itself
            await self.loop.follow(managed(config, here))
            return True
        async with contextlib.AsyncExitStack() as fresh:
            try:
                actuator, _ = await fresh.enter_async_context(actuation(config, here, context))
            except TakenError as error:
                log.error("%s; what was controlled before still is, and nothing else", error)
                return False
            await self.loop.follow(managed(config, here), actuator)
            old, self.held = self.held, fresh.pop_all()
        await old.aclose()
        return True


class WorkerSet:
    """The workers of `entries` of roma.yaml: those that it lists, and the nodes that match."""

    def __init__(self, entries: Sequence[str], context: ActuationContext, peers: Peers) -> None:
        self._entries = frozenset(entries)
        self._context = context
        self._peers = peers
        self._workers: dict[str, _ControlledWorker] = {}
        self._turn = asyncio.Lock()
        self._latest: Config | None = None
        self._is_behind = False
        """True if workers have not followed the latest configuration, since they did not tick."""
        self._group: asyncio.TaskGroup | None = None

    @property
    def controlled(self) -> Sequence[api.Controlled]:
        """The workers of now, for the API."""
        return list(self._workers.values())

    async def close(self) -> None:
        """Give up all actuators."""
        for name in list(self._workers):
            await self._remove(name)

    async def switch(self, config: Config) -> bool:
        """Control what `config` says; return False if another supervisor has some of it.

        Raises:
            TakenError: if another one has all of a worker that is new.
            ConfigError: for a key that its actuator cannot use.

        """
        async with self._turn:
            self._latest = config
            return await self._switch(config)

    async def _switch(self, config: Config) -> bool:
        wanted = [w for w in config.workers if w.entry in self._entries and not w.is_pool]
        names = {worker.name for worker in wanted}
        for name in [name for name in self._workers if name not in names]:
            log.info("worker %s is gone", name)
            await self._remove(name)
        known = [self._workers[w.name] for w in wanted if w.name in self._workers]
        for worker in wanted:
            if worker.name not in self._workers:
                await self._add(config, worker)
        for controlled in self._workers.values():
            controlled.loop.core.keep(DECISIONS_IN_ALL // len(self._workers))
        ticking = [worker for worker in known if worker.ticking is not None]
        self._is_behind = len(ticking) < len(known)
        return all(await asyncio.gather(*(w.switch(config, self._context) for w in ticking)))

    async def run(self) -> None:
        """Tick, and let workers that come tick, until one ends with an error; only while leading.

        Errors come in a group.
        """
        async with asyncio.TaskGroup() as group:
            self._group = group
            for worker in self._workers.values():
                self._begin(worker, group)
            async with self._turn:
                if self._latest is not None and self._is_behind:
                    await self._switch(self._latest)
            await asyncio.Event().wait()

    def _begin(self, worker: _ControlledWorker, group: asyncio.TaskGroup) -> None:
        worker.ticking = group.create_task(_ticking(worker.loop))

    async def _add(self, config: Config, worker: WorkerConfig) -> None:
        async with contextlib.AsyncExitStack() as opening:
            actuator, mode = await opening.enter_async_context(
                actuation(config, worker, self._context)
            )
            loop = self._loop(config, worker, actuator)
            held = opening.pop_all()
        found = self._workers[worker.name] = _ControlledWorker(loop, mode, held)
        log.info(
            "supervisor of worker %s controls %s cores (%s)",
            worker.name,
            loop.core.capacity,
            mode(),
        )
        _warn_of_absent_cores(worker)
        if self._group is not None:
            self._begin(found, self._group)

    def _loop(self, config: Config, worker: WorkerConfig, actuator: Actuator) -> ControlLoop:
        control, period = config.control, config.period(worker)
        directory = control.decision_log
        return ControlLoop(
            build_core(config, worker),
            actuator,
            self._peers(period),
            worker=worker.name,
            period=period,
            law=control.law,
            decision_log=None if directory is None else DecisionLog(directory),
            host=_unknown_host if worker.is_remote else read_host,
            decides_early=config.decides_early,
        )

    async def _remove(self, name: str) -> None:
        worker = self._workers.pop(name)
        if worker.ticking is not None:
            await cancel([worker.ticking])
        await worker.held.aclose()


@contextlib.asynccontextmanager
async def controlling(
    entries: Sequence[str], config: Config, context: ActuationContext, peers: Peers
) -> AsyncIterator[WorkerSet]:
    """Yield the workers of a configuration with their actuators, not ticking yet."""
    found = WorkerSet(entries, context, peers)
    try:
        await found.switch(config)
        yield found
    finally:
        await found.close()


async def _ticking(loop: ControlLoop) -> None:
    await loop.introduce()
    await loop.run()


def _warn_of_absent_cores(worker: WorkerConfig) -> None:
    """Log a worker with more cores than its host: no shortage would be seen, and nobody cut."""
    host = None if worker.is_remote else read_host()
    if host is None:
        return
    present = float(host.cpus)
    if worker.is_local:  # what runs below our own group has its limit, too
        with contextlib.suppress(ActuationError):
            present = min(present, find_hierarchy().limit() or present)
    if worker.allocatable > present:
        log.warning(
            "workers.%s.cores - reserved = %g: only %g are here, and models that need more get "
            "what the kernel leaves them, whatever their shares",
            worker.name,
            worker.allocatable,
            present,
        )


def _unknown_host() -> None:
    """Read nothing: this host's CPUs are not those of the executables."""

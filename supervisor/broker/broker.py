"""Operations on a worker's containers, limited to what roma.yaml describes.

A caller names an executable and cores. Container, image, mounts and bounds come from the broker's
own copy of roma.yaml. So whoever compromises a supervisor can only change quotas within their
bounds.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from roma.config.executable import Executable
from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.domain import units
from roma.domain.errors import ActuationError, BrokerRefused, EngineError
from roma.domain.model import Sharing
from supervisor.broker.bursts import Bursts
from supervisor.broker.containers import (
    SPECIFICATION,
    Container,
    check,
    listed,
    owned,
    reading,
    specification,
)
from supervisor.broker.engine import Engine, NotFound
from supervisor.executables import Reading
from supervisor.sharing import CoreRequest, share

log = logging.getLogger(__name__)

ROUNDING = 1e-6
"""Cores by which a bound may be exceeded: floats on their way through JSON."""

LEAST_LEASE = 3
"""Shortest lease, in control periods."""

WATCH = 0.25
"""Seconds between two checks of the lease."""


class Lease(Enum):
    """State of the control lease and, once it has run out, of the safe shares."""

    KEPT = "kept"
    """A supervisor controls."""
    STUCK = "stuck"
    """No supervisor does, and the engine grants nothing: logged once, retried until it does.

    Also where a container has come since it did."""
    SAFE = "safe"
    """Safe shares are granted."""


class Containers(Protocol):
    """The operations that a supervisor needs: the broker itself, or a client of it."""

    async def grant(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set quotas, all at once; return the cores of each, or why it failed. Renews the lease."""
        ...

    async def containers(self) -> Mapping[str, Container]:
        """Return the worker's containers by executable."""
        ...

    async def readings(self) -> Mapping[str, Reading | ActuationError]:
        """Return the engine's reading of each controlled executable, or why there is none."""
        ...


class Broker:
    """The containers of one worker. Silence of its supervisor beyond the lease means safe shares.

    `clock` returns monotonic seconds.
    """

    def __init__(
        self, config: Config, worker: WorkerConfig, engine: Engine, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._worker = worker
        self._engine = engine
        self._clock = clock
        self._executables = {e.name: e for e in on_worker(config, worker)}
        self._checked: dict[str, str] = {}
        # Burst and quota of a container change together: with two concurrent changes, the burst
        # of one would be back before the other's quota is lower, which the kernel then refuses.
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: Counter[str] = Counter()
        # A container must not be created after it was removed.
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # One skipped tick is no silence.
        self._lease = max(worker.containers.lease, LEAST_LEASE * config.period(worker))
        self._bursts = Bursts(config, worker)
        self._renewed = clock()
        self._state = Lease.KEPT

    def follow(self, config: Config) -> None:
        """Use the models of `config` from now on."""
        self._config, self._worker = config, config.worker(self._worker.name)
        self._executables = {e.name: e for e in on_worker(config, self._worker)}

    @property
    def executables(self) -> Mapping[str, Executable]:
        """The executables that roma.yaml puts on this worker, by name."""
        return self._executables

    async def grant(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set quotas, all at once; return the cores of each, or why it failed. Renews the lease."""
        self._renewed = self._clock()
        if self._state is not Lease.KEPT:
            log.info("worker %s: its supervisor is back", self._worker.name)
            self._state = Lease.KEPT
        return await self._grant(cores)

    async def containers(self) -> Mapping[str, Container]:
        """Return the worker's containers by executable, also those no longer in roma.yaml."""
        found = await self._engine.containers(owned(self._config, self._worker))
        return {c.executable: c for c in map(listed, found)}

    async def known(self) -> Mapping[str, Sequence[str]]:
        """Return the executables that roma.yaml has here, and their models."""
        return {name: list(e.spec.models) for name, e in self._executables.items()}

    async def readings(self) -> Mapping[str, Reading | ActuationError]:
        """Return the engine's reading of each controlled executable, or why there is none."""
        names = [e.name for e in self._executables.values() if e.controlled]
        found = await asyncio.gather(*(self._reading(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def create(self, name: str) -> None:
        """Create an executable's container and start it; one that matches roma.yaml is kept."""
        executable = self._known(name)
        async with self._making[name]:
            await self._create(executable)

    async def _create(self, executable: Executable) -> None:
        name = executable.name
        assert executable.container is not None
        body = specification(self._config, self._worker, executable)
        try:
            found = await self._engine.inspect(executable.container)
        except NotFound:
            found = None
        if found is not None:
            check(found, self._config, self._worker, name)
            if found["Config"]["Labels"].get(SPECIFICATION) != body["Labels"][SPECIFICATION]:
                await self._engine.remove(found["Id"])
                self._checked.pop(name, None)
                found = None
        if found is None:
            await self._make(executable.container, body)
        await self._engine.start(executable.container)
        if self._state is Lease.SAFE:
            self._state = Lease.STUCK

    async def _make(self, container: str, body: Mapping[str, Any]) -> None:
        try:
            await self._engine.create(container, body)
        except NotFound:
            log.info("pulling image %s", body["Image"])
            await self._engine.pull(body["Image"])
            await self._engine.create(container, body)

    async def remove(self, name: str) -> None:
        """Stop and remove an executable's container, if it exists.

        This includes one that is no longer in roma.yaml, as long as its labels mark it as ours.
        """
        async with self._making[name]:
            self._checked.pop(name, None)
            try:
                if name in self._executables:
                    found = await self._container(name)
                else:
                    found = (await self.containers())[name].id
            except (NotFound, KeyError):
                return
            self._checked.pop(name, None)
            await self._engine.remove(found)

    async def watch_lease(self) -> None:
        """Grant safe shares whenever the supervisor has been silent for too long; never returns."""
        while True:
            await asyncio.sleep(WATCH)
            if self._clock() - self._renewed <= self._lease or self._state is Lease.SAFE:
                continue
            if self._state is Lease.KEPT:
                log.warning(
                    "worker %s: no word of its supervisor for %g s: safe shares",
                    self._worker.name,
                    self._lease,
                )
            renewed, problem = self._renewed, await self._share_safely()
            if self._renewed != renewed:
                continue  # it came back while this call waited for the engine
            if problem and self._state is not Lease.STUCK:
                log.warning("worker %s: no safe shares yet: %s", self._worker.name, problem)
            self._state = Lease.STUCK if problem else Lease.SAFE

    async def _share_safely(self) -> str:
        """Grant safe shares; return what prevents it, if anything."""
        shares = safe_shares(self._executables.values(), self._worker.allocatable)
        results = await self._grant(shares)
        # What does not exist needs no share; what could not be reached is retried.
        failed = (
            str(result)
            for result in results.values()
            if isinstance(result, ActuationError) and not isinstance(result, NotFound)
        )
        return next(failed, "")

    async def _grant(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        names = list(cores)
        results = await asyncio.gather(*(self._set(name, cores[name]) for name in names))
        return dict(zip(names, results, strict=True))

    async def _set(self, name: str, cores: float) -> float | ActuationError:
        try:
            self._check_bounds(name, cores)
            period = self._config.control.cfs_period
            quota = units.quota_us(cores, period)
            self._changes[name] += 1
            change = self._changes[name]
            async with self._changing[name]:
                if change != self._changes[name]:
                    # A slow engine must not be asked for a grant that is out of date.
                    return ActuationError(f"executable {name}: a later change came first")
                container = await self._container(name)
                self._bursts.lower(container, quota)
                await self._engine.update_quota(
                    container, quota_us=quota, period_us=units.period_us(period)
                )
                self._bursts.restore(container, quota)
        except EngineError as error:
            self._checked.pop(name, None)  # a recreated container must be checked again
            return error
        except ActuationError as error:
            return error
        return units.cores_from_quota(quota, units.period_us(period))

    def _check_bounds(self, name: str, cores: float) -> None:
        executable = self._known(name)
        if not executable.controlled:
            raise BrokerRefused(f"executable {name}: on a {executable.spec.device}, has no quota")
        low, high = executable.min_cores, min(executable.max_cores, self._worker.allocatable)
        if not low - ROUNDING <= cores <= high + ROUNDING:
            raise BrokerRefused(f"executable {name}: cores = {cores}: must be in [{low}, {high}]")

    def _known(self, name: str) -> Executable:
        try:
            return self._executables[name]
        except KeyError:
            known = ", ".join(self._executables)
            raise BrokerRefused(f"executable = {name}: must be one of {known}") from None

    async def _container(self, name: str) -> str:
        """Return the id of a container that has been checked."""
        if name not in self._checked:
            container = self._known(name).container  # its model may have gone while it waited
            assert container is not None
            found = await self._engine.inspect(container)
            check(found, self._config, self._worker, name)
            self._checked[name] = found["Id"]
        return self._checked[name]

    async def _reading(self, name: str) -> Reading | ActuationError:
        try:
            container = await self._container(name)
            stats = await self._engine.stats(container)
            # The quota last: statistics may take a second, in which it may have moved.
            return reading(await self._engine.inspect(container), stats)
        except EngineError as error:
            self._checked.pop(name, None)  # a recreated container must be checked again
            return error
        except ActuationError as error:
            return error


def safe_shares(executables: Iterable[Executable], capacity: float) -> dict[str, float]:
    """Return the shares without a supervisor: each maximum, all scaled down equally to fit."""
    controlled = [e for e in executables if e.controlled]
    wants = [CoreRequest(min(e.max_cores, capacity), e.min_cores) for e in controlled]
    granted = share(wants, capacity, sharing=Sharing.PROPORTIONAL).granted
    return {e.name: cores for e, cores in zip(controlled, granted, strict=True)}

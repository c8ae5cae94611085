"""Granted and used CPU time of containers, from the kernel or from their engine.

On the engine's own host, reading the cgroup files takes 16 µs. An engine on another host is asked
in the background: a tick takes the answers that have arrived and waits for none.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roma.domain.errors import ActuationError
from supervisor.actuators.asking import Asking
from supervisor.broker.broker import Containers
from supervisor.cgroups import Group, Hierarchy, container_group
from supervisor.executables import Reading

ASK_AT = 0.75
"""Share of a control period after which the engine is asked: an answer ages until the next tick. A
late answer is not lost: engine 20.10 collects statistics once a second, at times of its own, so
there an answer takes up to that long."""

log = logging.getLogger(__name__)


class FileMeters:
    """Reads the host's cgroup files; `period` is the quota's, in seconds.

    They are found by a container's id, which changes only when a container is recreated.
    """

    def __init__(
        self,
        containers: Containers,
        hierarchy: Hierarchy,
        executables: Sequence[str],
        *,
        period: float,
    ) -> None:
        self._containers = containers
        self._hierarchy = hierarchy
        self._executables = tuple(executables)
        self._period = period
        self._groups: dict[str, Group] = {}
        self._missed: set[str] = set()
        """Containers that run and have no group below the hierarchy's root."""
        self._looking: asyncio.Task[None] | None = None

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every container's group; an unknown one is looked up until the next tick."""
        readings = {name: self._read(name) for name in self._executables}
        if None in readings.values() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())
        return readings

    async def close(self) -> None:
        """Stop looking up containers."""
        if self._looking is not None:
            self._looking.cancel()

    def _read(self, name: str) -> Reading | None:
        group = self._groups.get(name)
        if group is None:
            return None
        try:
            return group.read()
        except ActuationError:
            del self._groups[name]
            return None

    async def _look(self) -> None:
        try:
            found = await self._containers.containers()
        except ActuationError:
            return  # the next tick retries; `apply` reports an unreachable engine
        for name, container in found.items():
            if name in self._groups or not container.running:
                continue
            group = container_group(self._hierarchy, container.id, self._period)
            if group is not None:
                self._groups[name] = group
            elif container.id not in self._missed and name in self._executables:
                self._missed.add(container.id)
                root, short = self._hierarchy.roots[0], container.id[:12]
                log.warning(
                    "executable %s: its CPU use is unknown: container %s has no cgroup below %s",
                    name,
                    short,
                    root,
                )


class EngineMeters:
    """Asks the engine once per control period (seconds), or as often as it answers.

    An answer counts for one tick: used twice, it would show no usage in the second.
    """

    def __init__(
        self, containers: Containers, executables: Sequence[str], *, period: float
    ) -> None:
        self._containers = containers
        self._executables = tuple(executables)
        self._newest: Mapping[str, Reading] = {}
        self._arrived = 0.0
        self._unread: set[str] = set()
        self._asking = Asking(self._ask, period=period, at=ASK_AT)

    async def read(self) -> Mapping[str, Reading | None]:
        """Return the readings that have arrived since the last tick."""
        now = asyncio.get_running_loop().time()
        self._asking.on_tick(now)
        newest, self._newest = self._newest, {}
        found = {name: replace(r, age=now - self._arrived) for name, r in newest.items()}
        return {name: found.get(name) for name in self._executables}

    async def close(self) -> None:
        """Stop asking."""
        await self._asking.close()

    async def _ask(self) -> None:
        found: Mapping[str, Reading | ActuationError]
        try:
            found = await self._containers.readings()
        except ActuationError as error:
            found = dict.fromkeys(self._executables, error)
        self._arrived = asyncio.get_running_loop().time()
        self._newest = {name: r for name, r in found.items() if isinstance(r, Reading)}
        for name, failed in found.items():
            if isinstance(failed, ActuationError) and name not in self._unread:
                # Once, not once per second; `apply`, with nothing to change, would not report it.
                log.warning("executable %s: its CPU use is unknown: %s", name, failed)
        self._unread = set(found) - set(self._newest)

"""Cores of containers: set by a broker (or the engine itself), read from the kernel's files.

The engine's own statistics take one to two seconds, the files 16 µs. They are found by a
container's id, which changes only when a container is made anew.
"""

import asyncio
from collections.abc import Mapping, Sequence

from roma.errors import ActuationError, EngineError
from supervisor.actuators.cgroup import Group, Hierarchy, container_group
from supervisor.broker.broker import Containers
from supervisor.core import Reading


class DockerActuator:
    """`executables` are names; `timeout` in seconds bounds what a tick waits for the engine."""

    def __init__(
        self,
        containers: Containers,
        hierarchy: Hierarchy,
        executables: Sequence[str],
        *,
        period: float,
        timeout: float,
    ) -> None:
        self._containers = containers
        self._hierarchy = hierarchy
        self._executables = tuple(executables)
        self._period = period
        self._timeout = timeout
        self._groups: dict[str, Group] = {}
        self._looking: asyncio.Task[None] | None = None

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set quotas, all at once; asked for nothing, it still renews the broker's lease."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._containers.grant(cores)
        except TimeoutError:
            error = EngineError(f"no answer within {self._timeout:g} s")
        except EngineError as raised:
            error = raised
        return dict.fromkeys(cores, error)

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every container's group; one that is not known is looked for until the next tick."""
        readings = {name: self._read(name) for name in self._executables}
        if None in readings.values() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())
        return readings

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
            return  # the next tick looks again; an engine that is away is seen by `apply`
        for name, container in found.items():
            if name in self._groups or not container.running:
                continue
            group = container_group(self._hierarchy, container.id, self._period)
            if group is not None:
                self._groups[name] = group

"""Cores of containers: set by a broker (or the engine itself), read by meters."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from roma.domain.errors import ActuationError, EngineError
from supervisor.broker.broker import Containers
from supervisor.executables import Reading


class Meters(Protocol):
    """Source of readings (`supervisor/actuators/meters.py`)."""

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every executable; None where that is impossible now."""
        ...

    async def close(self) -> None:
        """Stop all background work."""
        ...


class DockerActuator:
    """Applies cores through a broker; `timeout` in seconds bounds a tick's wait for the engine."""

    def __init__(self, containers: Containers, meters: Meters, *, timeout: float) -> None:
        self._containers = containers
        self._meters = meters
        self._timeout = timeout

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Set quotas concurrently; an empty call still renews the broker's lease."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._containers.grant(cores)
        except TimeoutError:
            error: ActuationError = EngineError(f"no answer within {self._timeout:g} s")
        except ActuationError as raised:  # also of a broker that refuses this supervisor
            error = raised
        return dict.fromkeys(cores, error)

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every executable."""
        return await self._meters.read()

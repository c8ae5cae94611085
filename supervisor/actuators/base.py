"""The interface between the supervisor core and anything that can grant CPU time."""

from collections.abc import Mapping
from typing import Protocol

from roma.domain.errors import ActuationError
from supervisor.executables import Reading


class Actuator(Protocol):
    """Applies and reads the cores of executables, many at a time."""

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Grant `cores` by executable; return the cores each one has now, or why it failed.

        Called at each tick, with an empty mapping if nothing is to change, as a keep-alive.
        """
        ...

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every executable's present state; None where that is impossible now."""
        ...

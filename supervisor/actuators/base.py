"""The border between the supervisor core and whatever can grant CPU time."""

from collections.abc import Mapping
from typing import Protocol

from roma.domain.errors import ActuationError
from supervisor.core import Reading


class Actuator(Protocol):
    """Applies and reads the cores of executables, many at a time."""

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Grant `cores` by executable; return what each one has now, or why it failed.

        Called once per period, with nothing if nothing is to change: a sign of life.
        """
        ...

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every executable back from the world; None where that is impossible now."""
        ...

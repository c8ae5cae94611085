"""Cores of processes in cgroups: quotas written to files."""

import logging
from collections.abc import Mapping

from roma.domain.errors import ActuationError
from supervisor.cgroups import Group
from supervisor.executables import Reading

log = logging.getLogger(__name__)


class CgroupActuator:
    """Applies cores by writing quotas; a write takes microseconds, so it never blocks the loop."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = dict(groups)
        self._unread: set[str] = set()

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Write and read back each quota."""
        results: dict[str, float | ActuationError] = {}
        for name, wanted in cores.items():
            try:
                results[name] = self._groups[name].set_cores(wanted)
            except ActuationError as error:
                results[name] = error
        return results

    async def read(self) -> Mapping[str, Reading | None]:
        """Read every group back."""
        readings: dict[str, Reading | None] = {}
        for name, group in self._groups.items():
            try:
                readings[name] = group.read()
            except ActuationError as error:
                readings[name] = None
                if name not in self._unread:  # once, not at every tick
                    log.warning("executable %s: holding: %s", name, error)
        self._unread = {name for name, reading in readings.items() if reading is None}
        return readings

"""Cores of processes in cgroups: quotas written to files."""

import logging
from collections.abc import Callable, Iterable, Mapping

from roma.domain.errors import ActuationError
from supervisor.cgroups import Group
from supervisor.executables import Reading

log = logging.getLogger(__name__)


class CgroupActuator:
    """Applies cores by writing quotas; a write takes microseconds, so it never blocks the loop.

    `claim` raises TakenError if another program controls one of the groups.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        claim: Callable[[Iterable[Group]], None] = lambda _: None,
    ) -> None:
        self._groups = dict(groups)
        self._claim = claim
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
        """Read every group back; raise TakenError if one has come that is another program's."""
        readings: dict[str, Reading | None] = {}
        for name, group in self._groups.items():
            try:
                readings[name] = group.read()
            except ActuationError as error:
                readings[name] = None
                if name not in self._unread:  # once, not at every tick
                    log.warning("executable %s: its CPU use is unknown: %s", name, error)
        unread = {name for name, reading in readings.items() if reading is None}
        if self._unread - unread:  # made since, or made anew
            self._claim(self._groups.values())
        self._unread = unread
        return readings

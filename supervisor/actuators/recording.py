"""Says what it would do and does nothing: dry-run, and hosts where no quota may be set."""

import logging
from collections import deque
from collections.abc import Mapping

from roma.errors import ActuationError
from supervisor.actuators.base import Actuator
from supervisor.core import Reading

KEPT = 100
"""Ticks whose allocations are kept."""

log = logging.getLogger(__name__)


class RecordingActuator:
    """Keeps the last allocations it was asked for; `world`, if given, is still read."""

    def __init__(self, world: Actuator | None = None) -> None:
        self._world = world
        self.asked: deque[dict[str, float]] = deque(maxlen=KEPT)

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Log each allocation; nothing is applied, so nothing is confirmed."""
        self.asked.append(dict(cores))
        for name, wanted in cores.items():
            log.info("dry run: would give %s %.3f cores", name, wanted)
        return {}

    async def read(self) -> Mapping[str, Reading | None]:
        """Read what the wrapped actuator reads; nothing without one."""
        return await self._world.read() if self._world is not None else {}

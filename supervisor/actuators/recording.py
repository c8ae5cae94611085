"""An actuator that logs and applies nothing: for dry-run, and hosts where no quota may be set."""

import logging
from collections.abc import Mapping

from roma.domain.errors import ActuationError
from supervisor.actuators.base import Actuator
from supervisor.executables import Reading

WORTH_A_LINE = 0.05
"""Cores by which an allocation must differ from the last one logged."""

log = logging.getLogger(__name__)


class RecordingActuator:
    """Logs what is asked for; `world`, if given, is still read."""

    def __init__(self, world: Actuator | None = None) -> None:
        self._world = world
        self._logged: dict[str, float] = {}

    async def apply(self, cores: Mapping[str, float]) -> Mapping[str, float | ActuationError]:
        """Log each changed allocation; nothing is applied, so nothing is confirmed."""
        for name, wanted in cores.items():
            if abs(wanted - self._logged.get(name, 0.0)) >= WORTH_A_LINE:
                self._logged[name] = wanted
                log.info("not applied: %s would get %.2f cores", name, wanted)
        return {}

    async def read(self) -> Mapping[str, Reading | None]:
        """Read what the wrapped actuator reads; without one, nothing."""
        if self._world is None:
            return {}
        readings = await self._world.read()
        self._logged = {name: cores for name, cores in self._logged.items() if name in readings}
        return readings

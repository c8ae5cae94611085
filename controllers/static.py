"""`static`: the bounds of every comparison, all cores (max) or the fewest (min), always."""

from dataclasses import dataclass
from enum import StrEnum

from controllers.measurement import Demand, Measurement


class Level(StrEnum):
    """The constant bound to demand."""

    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class StaticGains:
    """The bound to demand."""

    level: Level = Level.MAX


def static_step(
    gains: StaticGains,
    state: None,
    measurement: Measurement,
    *,
    dt: float,
    lo: float,
    hi: float,
) -> tuple[Demand, None]:
    """Demand the bound, whatever the measurement."""
    cores = hi if gains.level is Level.MAX else lo
    return Demand(cores, f"static {gains.level}", {gains.level.value: cores}), None

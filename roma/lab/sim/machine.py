"""The cores of a simulated worker, which all its CPU executables share.

A quota bounds an executable's usage over a period, not at a moment. Until it is spent, everything
runs at full speed, and with burst an executable that was idle has twice as much to spend. Where
that is more than the available cores, each executable gets a fair share of them (max-min, as the
kernel does for groups of equal weight). Shares are computed anew whenever an executable begins,
ends, has spent its quota or gets the next one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roma.lab.sim.quota import QuotaCpu

ROUNDING = 1e-9
"""Cores by which a sum may differ."""

OVERLAP = 0.01
"""Share by which quotas may exceed what can be granted before they overlap: rounding."""


@dataclass(slots=True, eq=False)
class Unit:
    """A CPU executable.

    `version` distinguishes the latest end on the agenda from stale ones. `losses` counts how often
    it was lost, together with the work on its way to it. `core_seconds` is what was granted over
    time, or used where a stretch exceeded it; what was used alone if nobody can set its cores.
    """

    cpu: QuotaCpu
    is_controlled: bool = True
    version: int = 0
    losses: int = 0
    core_seconds: float = 0.0
    wanted: float = 0.0
    _since: float = 0.0
    _used: float = 0.0

    def account(self, now: float) -> None:
        """Account for the stretch from the last call until now."""
        self.cpu.advance(now)
        used, self._used = self.cpu.usage - self._used, self.cpu.usage
        granted = self.cpu.cores * (now - self._since) if self.is_controlled else 0.0
        self.core_seconds += max(granted, used)
        self._since = now


@dataclass(slots=True, eq=False)
class SharedCores:
    """`cores` shared by `units`, of which `allocatable` may be granted.

    Turns on the agenda of another `version` are stale.
    """

    cores: float
    allocatable: float
    units: Sequence[Unit]
    version: int = 0
    is_crowded: bool = False
    _wanted: float = field(default=0.0, repr=False)
    _twice: float = 0.0
    """Core-seconds of quotas beyond what may be granted: they overlapped."""
    _since: float = 0.0

    def settle(self, unit: Unit, now: float) -> Iterable[Unit]:
        """Account for what began, ended or was resized; return the units whose ends change."""
        wanted = unit.cpu.wanted
        self._wanted += wanted - unit.wanted
        unit.wanted = wanted
        if self._wanted > self.cores + ROUNDING:
            return self.turn(now)
        if self.is_crowded:
            self.is_crowded = False
            self.version += 1
            for each in self.units:
                each.cpu.pace(float("inf"), now)
            return self.units
        return (unit,)

    def turn(self, now: float) -> Iterable[Unit]:
        """Share the cores among the units with quota left; return the units whose ends change."""
        self.is_crowded = True
        running = [unit for unit in self.units if unit.wanted]
        for unit in running:
            unit.cpu.advance(now)
        able = [unit for unit in running if not unit.cpu.is_spent]
        left = self.cores
        for others, unit in zip(
            range(len(able) - 1, -1, -1), sorted(able, key=lambda u: u.wanted), strict=True
        ):
            cores = min(unit.wanted, left / (others + 1))
            unit.cpu.pace(cores, now)
            left -= cores
        return running

    def core_seconds(self, now: float) -> float:
        """Return the core-seconds granted or used until now; quotas that overlap count once."""
        self._account(now)
        for unit in self.units:
            unit.account(now)
        used = sum(unit.cpu.usage for unit in self.units)
        return max(used, sum(unit.core_seconds for unit in self.units) - self._twice)

    def resize(self, unit: Unit, cores: float, now: float) -> None:
        """Set a unit's quota."""
        self._account(now)
        unit.account(now)
        unit.cpu.resize(cores, now)

    def _account(self, now: float) -> None:
        """Account for what the quotas were since the last call."""
        granted = sum(unit.cpu.cores for unit in self.units if unit.is_controlled)
        if granted > (1 + OVERLAP) * self.allocatable:
            self._twice += (granted - self.allocatable) * (now - self._since)
        self._since = now

    def next_turn(self) -> float:
        """Return the time when the next executable spends its quota, or gets one."""
        return min(unit.cpu.next_turn() for unit in self.units if unit.wanted)

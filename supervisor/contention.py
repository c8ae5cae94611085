"""CPU contention: CPU time that others take of a host, and how long tasks wait for a CPU.

A quota is a right, not a CPU. An executable that uses less than its quota, is not throttled and is
still late was kept from the CPUs by another program; more quota would not help it.
"""

from dataclasses import dataclass

from roma.domain import units

OTHERS = 0.1
"""Least share of the host's CPUs that others, or the hypervisor, must take."""

IDLE = 0.1
"""Largest share of idle CPUs: with more, a waiting task would have one."""

WAITED = 0.2
"""Least share of the time in which a task must wait for a CPU."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """Reading of a host with `cpus` CPUs; the others are cumulative, in seconds.

    `busy` and `stolen` (by a hypervisor) are CPU-seconds; `waited` is the time in which at least
    one task waited for a CPU (PSI's `some`), None where the kernel does not measure it.
    """

    cpus: int
    busy: float
    stolen: float
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class Contention:
    """Contention over one control period, as it affects an executable.

    `others` and `stolen` are CPUs: used outside this worker, and given to other machines by the
    hypervisor. `waited` is the share of the time in which a task waited for a CPU (None: unknown):
    one of the executable's own if `own`, else any of the host's.
    """

    cpus: int
    idle: float
    others: float
    stolen: float
    waited: float | None = None
    own: bool = False

    @property
    def matters(self) -> bool:
        """True if it can keep an executable that is not throttled from the cores it has."""
        if self.waited is not None and self.waited < WAITED:
            return False
        if self.own:
            return True
        # The host's figure also counts tasks that their own quota keeps waiting.
        taken = self.others + self.stolen
        return taken >= OTHERS * self.cpus and self.idle <= IDLE * self.cpus


def contention(
    before: HostReading | None, now: HostReading | None, used: float, dt: float
) -> Contention | None:
    """Return the contention over the last `dt` seconds, in which the worker used `used` cores.

    None until there are two readings.
    """
    if before is None or now is None or dt <= 0:
        return None
    busy = max(0.0, now.busy - before.busy) / dt
    stolen = max(0.0, now.stolen - before.stolen) / dt
    waited = None
    if now.waited is not None and before.waited is not None:
        waited = waited_share(now.waited - before.waited, dt)
    return Contention(
        cpus=now.cpus,
        idle=max(0.0, now.cpus - busy - stolen),
        others=max(0.0, busy - used),
        stolen=stolen,
        waited=waited,
    )


def parse_some(text: str) -> float | None:
    """Return the seconds in which some task waited, from a file of the kernel's PSI."""
    for line in text.splitlines():
        if line.startswith("some ") and (total := line.rpartition("total=")[2]).isdecimal():
            return units.seconds_from_us(int(total))
    return None


def waited_share(seconds: float, dt: float) -> float:
    """Return these seconds as a share of `dt`, from 0 to 1."""
    return min(1.0, max(0.0, seconds / dt))

"""The executables of a deployment, simulated: GPUs, and CPU executables under their quotas."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from roma.config.placement import on_worker
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.domain import units
from roma.domain.model import Device
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.machine import SharedCores, Unit
from roma.lab.sim.quota import QuotaCpu
from supervisor.executables import Reading

NOTICE = 0.002
"""Seconds until a core notices that the quota is spent, on average: half of the kernel's tick at
250 Hz."""


class World:
    """Runs executions; calls `on_end(execution)` when one ends. `is_coarse`: see `Scenario`."""

    def __init__(
        self,
        config: Config,
        profiles: Mapping[str, ModelProfile],
        agenda: Agenda,
        on_end: Callable[[int], None],
        *,
        burst: float = 0.0,
        is_coarse: bool = False,
    ) -> None:
        self._agenda = agenda
        self._on_end = on_end
        self._profiles = profiles
        self._spread = {name: _spread(p.noise) for name, p in profiles.items()}
        self._gpu_spread = {name: _spread(p.gpu_noise) for name, p in profiles.items()}
        self._period = config.control.cfs_period
        self._units: dict[str, Unit] = {}
        self._machines: dict[Unit, SharedCores] = {}
        for worker in config.workers:
            units = {
                e.name: Unit(
                    QuotaCpu(
                        e.spec.cores,
                        period=self._period,
                        # It is a file of the engine's host.
                        burst=0.0 if worker.has_remote_engine else burst,
                        notice=0.0 if is_coarse else NOTICE,
                        parallelism=profiles[e.spec.models[0]].parallelism,
                        limit=worker.cores,
                    ),
                    is_controlled=e.controlled,
                )
                for e in on_worker(config, worker)
                if e.spec.device is Device.CPU
            }
            cores = (worker.cores, worker.allocatable) if not is_coarse else (math.inf, math.inf)
            machine = SharedCores(*cores, tuple(units.values()))
            self._units |= units
            self._machines |= dict.fromkeys(units.values(), machine)

    def start(self, execution: int, executor: str, model: str, normals: Sequence[float]) -> None:
        """Begin a batch; one standard normal per request gives the size of each.

        The same input is large on every device, so laws and schedulers are compared under the very
        same requests.
        """
        now, profile = self._agenda.now, self._profiles[model]
        unit = self._units.get(executor)
        if unit is None:
            assert profile.gpu_time is not None, f"model {model} has no gpu_time"
            busy = profile.gpu_time * _scale(normals, self._gpu_spread[model])
            self._agenda.at(now + busy, self._on_end, execution)
            return
        work = profile.cost * _scale(normals, self._spread[model])
        if profile.overhead:
            on_its_way = (unit, unit.losses, execution, work)
            self._agenda.at(now + profile.overhead, self._begin, on_its_way)
        else:
            unit.cpu.start(execution, work, now)
            self._settle(unit)

    def lose(self, executor: str) -> None:
        """Forget the executions of a CPU executable; none of them will end."""
        unit = self._units.get(executor)
        if unit is not None:
            unit.cpu.clear(self._agenda.now)
            unit.version += 1
            unit.losses += 1
            self._settle(unit)

    def resize(self, executor: str, cores: float) -> float:
        """Set a quota; return the cores it means after the kernel's rounding."""
        quota = units.quota_us(cores, self._period)
        applied = units.cores_from_quota(quota, units.period_us(self._period))
        unit = self._units[executor]
        self._machines[unit].resize(unit, applied, self._agenda.now)
        self._settle(unit)
        return applied

    def reading(self, executor: str) -> Reading:
        """Return the kernel's reading at this moment."""
        unit = self._units[executor]
        unit.account(self._agenda.now)
        cpu = unit.cpu
        return Reading(cpu.cores, cpu.usage, cpu.periods, cpu.throttled, burst=cpu.burst or None)

    def core_seconds(self) -> float:
        """Return the core-seconds granted or used until now, over all workers (`SharedCores`)."""
        machines = dict.fromkeys(self._machines.values())
        return sum(machine.core_seconds(self._agenda.now) for machine in machines)

    def used_seconds(self) -> float:
        """Return the core-seconds really computed until now."""
        return sum(self.reading(name).usage for name in self._units)

    def _begin(self, what: tuple[Unit, int, int, float]) -> None:
        unit, losses, execution, work = what
        if losses != unit.losses:
            return
        unit.cpu.start(execution, work, self._agenda.now)
        self._settle(unit)

    def _settle(self, unit: Unit) -> None:
        """Reschedule stale events once an executable has more or less to do, or other cores."""
        machine = self._machines[unit]
        self._plan(machine, machine.settle(unit, self._agenda.now))

    def _plan(self, machine: SharedCores, stale: Iterable[Unit]) -> None:
        for unit in stale:
            unit.version += 1
            end = unit.cpu.next_end()
            if end is not None:
                self._agenda.at(end[0], self._on_cpu_end, (unit, unit.version))
        if machine.is_crowded:
            machine.version += 1
            self._agenda.at(machine.next_turn(), self._on_turn, (machine, machine.version))

    def _on_turn(self, what: tuple[SharedCores, int]) -> None:
        machine, version = what
        if version == machine.version:
            self._plan(machine, machine.turn(self._agenda.now))

    def _on_cpu_end(self, what: tuple[Unit, int]) -> None:
        unit, version = what
        if version != unit.version:
            return
        execution = unit.cpu.end(self._agenda.now)
        self._settle(unit)
        self._on_end(execution)


def _spread(cv: float) -> float:
    """Return σ of the lognormal distribution with mean 1 and this coefficient of variation."""
    return math.sqrt(math.log(1 + cv * cv))


def _scale(normals: Sequence[float], spread: float) -> float:
    """Return the number of average requests that these are together."""
    total, half_variance = 0.0, spread * spread / 2
    for z in normals:  # sum() over a generator costs three times as much for one request
        total += math.exp(spread * z - half_variance)
    return total

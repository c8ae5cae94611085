"""Drives the production cores in virtual time: the simulated counterpart of `live/`.

    arrivals ─► Dispatcher.handle ─► Execute ─► World ─► ExecutionEnded ─► Dispatcher.handle
    every period: readings and report ─► Supervisor.tick ─► Apply ─► World and CoresApplied

Nothing is decided here. Same scenario, same seed: same sequence of decisions, to the bit.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from dispatcher import reports
from dispatcher.assembly import build_core as build_dispatcher
from roma.config.placement import executables
from roma.config.workers import WorkerConfig
from roma.domain.actions import Capabilities
from roma.domain.events import (
    Command,
    CoresApplied,
    Event,
    Execute,
    ExecutorLost,
    ExecutorReady,
    Reason,
    RequestArrived,
    soonest_tick,
)
from roma.domain.model import Request
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.decision_log import PERIOD, SimDecisionLog, Write
from roma.lab.sim.devices import Noise, SimulatedDevices
from roma.lab.sim.driver import SimulatedDriver
from roma.lab.sim.result import ModelResult, SimulationResult, TickSample
from roma.lab.sim.scenario import ExecutorFault, Scenario, SupervisorFault, seed_of
from roma.lab.sim.tally import Tally
from roma.lab.sim.world import World
from supervisor.assembly import build_core as build_supervisor
from supervisor.core import Supervisor
from supervisor.executables import Apply, Reading

DISPATCHER = "dispatcher"


@dataclass(slots=True)
class _Stream:
    """The future requests of one model."""

    model: str
    times: Iterator[float]
    patience: float
    tally: Tally


@dataclass(slots=True)
class _Worker:
    """A worker's supervisor, None while it is dead; times of its last and of its next tick."""

    config: WorkerConfig
    core: Supervisor | None
    ticked: float = -math.inf
    due: float = math.inf


class Simulation(SimulatedDriver):
    """A run; `trace(time, command)` sees every command, `record` keeps the data for figures.

    `decision_log` takes a live run's records: every decision, and every model once a second.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        record: bool = False,
        trace: Callable[[float, Command | Apply], None] | None = None,
        decision_log: Write | None = None,
    ) -> None:
        config = scenario.config
        agenda = Agenda()
        # Cores that follow a script follow no load.
        reaction = None if scenario.script is None else 0.0
        dispatcher = build_dispatcher(config, reaction=reaction)
        super().__init__(dispatcher, agenda, self._planned(scenario, agenda))
        self.world = World(
            config,
            scenario.profiles,
            agenda,
            self._on_end,
            burst=scenario.burst,
            is_coarse=scenario.is_coarse,
        )
        self.workers = {w.name: _Worker(w, build_supervisor(config, w)) for w in config.workers}
        self._scenario = scenario
        self._trace = trace
        self._record = record
        self._teller = (
            None
            if decision_log is None
            else SimDecisionLog(
                decision_log,
                config.control.law,
                DISPATCHER,
                periods={w.name: config.period(w) for w in config.workers},
            )
        )
        self._samples: list[TickSample] = []
        self._ids = itertools.count(1)
        # Pending requests: tally, arrival time and size (a standard normal) by request.
        self._open: dict[int, tuple[Tally, float, float]] = {}
        # Sizes are drawn at arrival, in the order of arrival: the same for every law and policy.
        self._draw = random.Random(seed_of(scenario.seed, -1)).gauss
        self._tallies = {
            spec.name: Tally(spec.sla.response_time, series=[] if record else None)
            for spec in config.model_specs
        }

    def _planned(self, scenario: Scenario, agenda: Agenda) -> SimulatedDevices | None:
        """Return the planned devices, if the configuration has any."""
        config, plant = scenario.config, scenario.config.plant
        if plant is None or not scenario.devices:
            return None
        return SimulatedDevices(
            agenda,
            {e.name: scenario.devices for e in executables(config)},
            pages=plant.pages,
            latency=config.scheduling.latency,
            noise=Noise(spread=plant.device_noise, stalls=0.0),
            draw=random.Random(seed_of(scenario.seed, -2)),
            on_outcome=self._on_outcome,
        )

    def run(self, on_progress: Callable[[float], None] | None = None) -> SimulationResult:
        """Simulate the whole scenario; report the share done after each hundredth."""
        self._begin()
        duration = self._scenario.duration
        if on_progress is not None:
            for hundredth in range(1, 100):
                self.agenda.run(duration * hundredth / 100)
                on_progress(hundredth / 100)
        self.agenda.run(duration)
        if self._teller is not None:
            supervisors = {name: worker.core for name, worker in self.workers.items()}
            self._teller.end(self.dispatcher, supervisors, self.agenda.now)
        return self._result()

    def _begin(self) -> None:
        scenario = self._scenario
        for executable in executables(scenario.config):
            self._add(executable.spec, self._offer())
        for name, times in scenario.arrivals.items():
            spec = self.dispatcher.queues[name].spec
            stream = _Stream(name, iter(times), spec.deadline, self._tallies[name])
            self._await_next(stream)
        for worker in self.workers.values():
            self._tick_at(worker, 0.0)
        for fault in scenario.faults:
            self.agenda.at(fault.time, self._break, fault)
        if self._teller is not None:
            self._look(self._teller)

    def _offer(self) -> Capabilities | None:
        """Return the capabilities of each executable; None if they are no planned devices."""
        scenario = self._scenario
        plant = scenario.config.plant
        if self.devices is None or plant is None:
            return None
        return Capabilities(plant.pages, scenario.devices)

    # Requests

    def _await_next(self, stream: _Stream) -> None:
        time = next(stream.times, None)
        if time is not None:
            self.agenda.at(time, self._arrive, stream)

    def _arrive(self, stream: _Stream) -> None:
        now, number, tally = self.agenda.now, next(self._ids), stream.tally
        tally.arrivals += 1
        self._open[number] = (tally, now, self._draw(0.0, 1.0))
        request = Request(number, stream.model, now, now + stream.patience)
        if self._scenario.front_end:
            self.agenda.at(now + self._scenario.front_end, self._handle, RequestArrived(request))
        else:
            self._handle(RequestArrived(request))
        self._await_next(stream)

    def _start(self, command: Execute) -> None:
        waited_for = self._open
        sizes = [waited_for[request][2] for request in command.requests]
        self.world.start(command.execution, command.executor, command.model, sizes)

    def _on_answered(self, request: int, command: Execute) -> None:
        if request in self._open:  # else it was refused between two segments
            tally, arrived, _ = self._open.pop(request)
            now = self.agenda.now
            tally.answered(now - arrived, now)

    def _on_refused(self, request: int, reason: Reason | None) -> None:
        tally, arrived, _ = self._open.pop(request)
        if reason is None:
            tally.failure(arrived, self.agenda.now)
        else:
            tally.refused(reason, arrived, self.agenda.now)

    def _decide(self, event: Event) -> list[Command]:
        commands = super()._decide(event)
        if self._trace is not None:
            for command in commands:
                self._trace(self.agenda.now, command)
        return commands

    # Control

    def _on_cores_needed(self, model: str) -> None:
        """Let the supervisors of a model's executables tick, as `supervisor.live.loop` does."""
        config, now = self._scenario.config, self.agenda.now
        if not config.decides_early:
            return
        for executor in self.dispatcher.executors.of(model):
            worker = self.workers[executor.spec.worker]
            period = config.period(worker.config)
            # A tick waits for its quotas, a third of a period at most.
            wait = min(self._scenario.actuation_delay, period / 3)
            soonest = max(soonest_tick(period), wait)
            self._tick_at(worker, max(now, worker.ticked + soonest))

    def _tick_at(self, worker: _Worker, time: float) -> None:
        if time < worker.due:
            worker.due = time
            self.agenda.at(time, self._tick, (worker, time))

    def _tick(self, what: tuple[_Worker, float]) -> None:
        """Run one control period of one worker, like `supervisor.live.loop`."""
        worker, due = what
        if due != worker.due:
            return  # an earlier one has replaced it
        now, core = self.agenda.now, worker.core
        worker.ticked, worker.due = now, math.inf
        self._tick_at(worker, now + self._scenario.config.period(worker.config))
        if core is None:
            return
        if self._scenario.script is not None:
            self._follow(self._scenario.script, worker)
            return
        readings = {name: self._reading(name) for name in core.status}
        reply = reports.reply(self.dispatcher, DISPATCHER, now)
        if self._scenario.hide_age:
            models = tuple(replace(m, oldest_age=0.0) for m in reply.models)
            reply = replace(reply, models=models)
        complete = [] if self._teller is None else core.last()
        wanted = core.tick({DISPATCHER: reply}, readings, now=now)
        if self._teller is not None:
            self._teller.decided(worker.config.name, complete)
        for apply in () if self._scenario.config.control.dry_run else wanted:
            if self._trace is not None:
                self._trace(now, apply)
            if self._scenario.actuation_delay:
                self.agenda.at(now + self._scenario.actuation_delay, self._apply, (worker, apply))
            else:
                self._apply((worker, apply))
        self._end_tick(worker, core)

    def _reading(self, name: str) -> Reading:
        reading, error = self.world.reading(name), self._scenario.usage_error
        return reading if error == 1 else replace(reading, usage=reading.usage * error)

    def _look(self, teller: SimDecisionLog) -> None:
        now = self.agenda.now
        self.agenda.at(now + PERIOD, self._look, teller)
        teller.look(self.dispatcher, now)

    def _follow(self, script: Mapping[str, Sequence[float]], worker: _Worker) -> None:
        k = round(self.agenda.now / self._scenario.config.period(worker.config))
        for name, cores in script.items():
            if worker.core is not None and name in worker.core.status and k < len(cores):
                self._apply((worker, Apply(name, cores[k])))

    def _apply(self, what: tuple[_Worker, Apply]) -> None:
        worker, apply = what
        applied = self.world.resize(apply.executable, apply.cores)
        if worker.core is not None:
            worker.core.on_applied(apply.executable, applied)
        self._confirm(worker, apply.executable, applied)

    def _confirm(self, worker: _Worker, name: str, cores: float) -> None:
        """Tell the dispatcher an executable's cores, and the cost of a request if it is known."""
        status = None if worker.core is None else worker.core.status[name]
        cost = None if status is None else status.known_cost
        executor = self.dispatcher.executors[name]
        if not executor.is_told(cores, executor.part, cost):
            self._handle(CoresApplied(name, cores, executor.part, cost))

    def _end_tick(self, worker: _Worker, core: Supervisor) -> None:
        for name in core.status:
            self._confirm(worker, name, self.dispatcher.executors[name].cores)
        if self._record:
            self._sample(core)

    def _sample(self, core: Supervisor) -> None:
        for name, status in core.status.items():
            decision = status.decisions[-1]
            m = decision.measurement
            if m is not None:
                rate = (m.completed_gpu + m.completed_cpu) / decision.dt
                self._samples.append(
                    TickSample(self.agenda.now, name, m.applied, m.response_time, rate)
                )

    # Faults

    def _break(self, fault: ExecutorFault | SupervisorFault) -> None:
        back = self.agenda.now + fault.duration
        match fault:
            case ExecutorFault():
                self.world.lose(fault.executor)
                self._handle(ExecutorLost(fault.executor))
            case SupervisorFault():
                self.workers[fault.worker].core = None
            case _:
                assert_never(fault)
        self.agenda.at(back, self._repair, fault)

    def _repair(self, fault: ExecutorFault | SupervisorFault) -> None:
        match fault:
            case ExecutorFault():
                self._handle(ExecutorReady(fault.executor))
            case SupervisorFault():
                worker = self.workers[fault.worker]
                worker.core = build_supervisor(self._scenario.config, worker.config)
            case _:
                assert_never(fault)

    def _result(self) -> SimulationResult:
        # What still waits or runs is late if its SLA has passed; else its outcome is unknown.
        for tally, arrived, _ in self._open.values():
            tally.late += self.agenda.now - arrived > tally.sla
        for tally in self._tallies.values():
            tally.close()
        queues = self.dispatcher.queues
        return SimulationResult(
            seconds=self._scenario.duration,
            allocatable=sum(w.config.allocatable for w in self.workers.values()),
            core_seconds=self.world.core_seconds(),
            used_seconds=self.world.used_seconds(),
            models=tuple(
                ModelResult.of(name, tally, queues[name]) for name, tally in self._tallies.items()
            ),
            samples=tuple(self._samples),
        )

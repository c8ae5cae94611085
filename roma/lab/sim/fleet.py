"""A fleet of devices in virtual time: thousands of models, batches, loads and unloads.

The dispatcher core and its policy are those that run live, and so are the rules of a planned device
(`roma.device.core`). Devices without windows run one batch at a time and hold every model: other
policies are compared on these. Decisions take no time, unless a clock of their cost is given.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dispatcher.core import Dispatcher
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import ActionOutcome, ActionStatus, Capabilities, ModelCapabilities
from roma.domain.events import (
    Command,
    DiscardResults,
    Event,
    Execute,
    LoadModel,
    Reason,
    RequestArrived,
    UnloadModel,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla, Statistic
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.devices import SimulatedDevices
from roma.lab.sim.driver import SimulatedDriver
from roma.lab.sim.fleet_plan import Arrival, Ended, FleetPlan, Prediction


@dataclass(frozen=True, slots=True)
class _Client:
    """A source of requests to one model, judged by `slo`."""

    model: str
    slo: float
    arrivals: Iterator[Arrival]


class Fleet(SimulatedDriver):
    """A run; `on_end` sees every request's end, `on_action` every action's prediction.

    `clock` counts the seconds of a core that decisions take. With it they pass in virtual time too,
    as on the one thread of a dispatcher: events meanwhile wait their turn, and commands leave when
    their decision has been made.
    """

    def __init__(
        self,
        plan: FleetPlan,
        *,
        on_end: Callable[[Ended], None],
        on_action: Callable[[Prediction], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.plan = plan
        self._on_ended, self._on_action = on_end, on_action
        patience, promise = plan.patience or plan.deadline, plan.soft or plan.deadline
        sla, names = Sla(promise, Statistic.EACH), tuple(plan.variants or plan.models)
        specs = [
            ModelSpec(name, sla, patience, plan.max_waiting, variants=plan.variants.get(name, ()))
            for name in names
        ]
        dispatcher = Dispatcher(
            specs,
            gpu=plan.policy,
            cpu=CpuRoundRobin,
            options=SchedulingConfig(ahead=plan.ahead, latency=plan.latency, quality=plan.quality),
            learned=plan.learned,
        )
        self._random = random.Random(plan.seed)
        kinds, agenda = plan.kinds or [plan.models] * plan.devices, Agenda()
        self._devices = SimulatedDevices(
            agenda,
            {f"gpu{i}": models for i, models in enumerate(kinds)},
            pages=plan.pages if plan.planned else None,
            latency=plan.latency,
            noise=plan.noise,
            draw=self._random,
            on_outcome=self._on_outcome,
            overlap=plan.overlap,
        )
        super().__init__(dispatcher, agenda, self._devices if plan.planned else None)
        self._open: dict[int, tuple[_Client, Request, bool]] = {}
        self._predicted: dict[int, tuple[float, float]] = {}
        self._last = 0
        self._clock: Callable[[], float] | None = None
        self._undecided: deque[tuple[Event, Execute | None]] = deque()
        self.decided_for = 0.0
        """Seconds that decisions have taken; 0 without a clock."""
        self.loads = 0
        self.handle = dispatcher.handle
        """Takes events; an experiment may wrap it."""
        for name, machine in self._devices.by_name.items():
            offer = None
            if plan.planned:
                offer = Capabilities(plan.pages, machine.models, together=plan.together)
            spec = ExecutorSpec(name, Device.GPU, names, is_planned=plan.planned)
            self._add(spec, offer)
        for time, device, delay in plan.late:
            self.agenda.at(time, self._delay, (f"gpu{device}", delay))
        self._clock = clock  # now, since devices exist before the first request arrives

    def run(self, until: float) -> None:
        """Simulate until a point in time; may be called again."""
        self.agenda.run(until)

    # Clients

    def send(self, model: str, times: Iterator[float], slo: float | None = None) -> None:
        """Add a client that sends at these times, whatever is answered."""
        slo = slo or self.plan.deadline
        # A policy that never refuses lets a request live for `patience`; it is judged by its SLO.
        patience = slo if self.plan.patience is None else self.plan.patience
        self._next(_Client(model, slo, (Arrival(time, time + patience) for time in times)))

    def ask(self, model: str, arrivals: Iterator[Arrival]) -> None:
        """Add a client whose requests have deadlines of their own, in the order of arrival."""
        self._next(_Client(model, self.plan.deadline, arrivals))

    def _next(self, client: _Client) -> None:
        arrival = next(client.arrivals, None)
        if arrival is not None:
            self.agenda.at(arrival.time, self._arrive, (client, arrival))

    def _arrive(self, what: tuple[_Client, Arrival]) -> None:
        client, arrival = what
        now, deadline = self.agenda.now, arrival.deadline
        self._last += 1
        request = Request(self._last, client.model, now, deadline, terms=arrival.terms)
        self._open[request.id] = client, request, not self._is_loaded(client.model)
        self._handle(RequestArrived(request))
        self._next(client)

    def _is_loaded(self, model: str) -> bool:
        return self.devices is None or self.devices.holds(model)

    def _finish(self, number: int, reason: Reason | None, variant: str | None = None) -> None:
        client, request, is_cold = self._open.pop(number)
        self._on_ended(Ended(request, self.agenda.now, client.slo, reason, is_cold, variant))

    def _on_answered(self, request: int, command: Execute) -> None:
        if request in self._open:  # else it was refused while it ran
            self._finish(request, None, command.variant)

    def _on_refused(self, request: int, reason: Reason | None) -> None:
        assert reason is not None, f"nothing fails here: request {request}"
        self._finish(request, reason)

    # The dispatcher

    def _handle(self, event: Event, ended: Execute | None = None) -> None:
        if self._clock is None:
            super()._handle(event, ended)
            return
        self._undecided.append((event, ended))
        if len(self._undecided) == 1:
            self._decide_next()

    def _decide(self, event: Event) -> list[Command]:
        return self.handle(event, now=self.agenda.now)

    def _decide_next(self) -> None:
        """Handle the next event; its commands and answers leave after the time that this takes."""
        assert self._clock is not None
        event, start = self._undecided[0][0], self._clock()
        commands = self._decide(event)
        spent = self._clock() - start
        self.decided_for += spent
        self.agenda.at(self.agenda.now + spent, self._on_decided, commands)

    def _on_decided(self, commands: Sequence[Command]) -> None:
        event, ended = self._undecided.popleft()
        if ended is not None:
            self._answer(ended)
        self._carry_out_all(event, commands)
        if self._undecided:
            self._decide_next()

    # Devices

    def _execute(self, command: Execute) -> None:
        if self.plan.planned and command.part is None:
            name, variant = command.executor, command.variant
            self._predict(command.execution, name, variant, command.size)
        super()._execute(command)

    def _start(self, command: Execute) -> None:
        offer = self.plan.models[command.model]
        machine = self._devices.by_name[command.executor]
        busy = self._devices.noisy(_seconds(offer, command.size), machine)
        end = self.agenda.now + 2 * self.plan.latency + busy
        self.agenda.at(end, self._on_plain_end, (command.execution, busy))

    def _on_plain_end(self, what: tuple[int, float]) -> None:
        self._on_end(*what)

    def _manage(self, command: LoadModel | UnloadModel | DiscardResults) -> None:
        if isinstance(command, LoadModel):
            self.loads += 1
            self._predict(command.load, command.executor, command.model, None)
        super()._manage(command)

    def _predict(self, number: int, executor: str, model: str, batch: int | None) -> None:
        if self._on_action is None:
            return
        device, now = self.dispatcher.executors[executor].planned, self.agenda.now
        assert device is not None
        lane = device.loads if batch is None else device.infers
        expected = device.loading(model) if batch is None else device.execution(model, batch)
        self._predicted[number] = expected, lane.free_at(now) + 2 * self.plan.latency

    def _on_outcome(self, outcome: ActionOutcome) -> None:
        number, is_ok = outcome.id, outcome.status is ActionStatus.OK
        predicted = self._predicted.pop(number, None)
        if predicted is not None and self._on_action is not None and is_ok:
            expected, end = predicted
            is_load, took = number not in self._running, outcome.duration
            self._on_action(Prediction(is_load, expected, took, end, self.agenda.now))
        super()._on_outcome(outcome)

    def _delay(self, what: tuple[str, float]) -> None:
        name, delay = what
        self._devices.by_name[name].delay += delay


def _seconds(offer: ModelCapabilities, batch: int) -> float:
    """Return the seconds of a batch of any size, extrapolated linearly beyond the largest."""
    sizes = sorted(offer.executions)
    if batch <= sizes[-1]:
        return offer.seconds(batch)
    low, high = sizes[-2:]
    slope = (offer.executions[high] - offer.executions[low]) / (high - low)
    return offer.executions[high] + slope * (batch - high)

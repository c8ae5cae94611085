"""A fleet of devices in virtual time: thousands of models, batches, loads and unloads.

    clients ─► Dispatcher.handle ─► Execute, LoadModel ─► WorkerCore ─► outcomes ─► Dispatcher

The dispatcher core and its policy are those that run live, and so are the rules of a planned device
(`roma.device.core`). The agenda replaces the clock, and an action takes the time of its profile,
times noise. Devices without windows run one batch at a time and hold every model: other policies
are compared on these. Decisions take no time, unless a clock of their cost is given.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from dispatcher.core import Dispatcher
from dispatcher.schedulers.cpu_round_robin import CpuRoundRobin
from roma.config.scheduling import SchedulingConfig
from roma.domain.actions import (
    ActionOutcome,
    ActionStatus,
    Capabilities,
    Discard,
    Infer,
    Load,
    ModelCapabilities,
    Unload,
)
from roma.domain.errors import ConfigError
from roma.domain.events import (
    Abort,
    Command,
    CoresNeeded,
    DiscardResults,
    Event,
    Execute,
    ExecutionEnded,
    ExecutionMissed,
    ExecutorAdded,
    ExecutorReady,
    Fail,
    LoadEnded,
    LoadModel,
    Reason,
    Reject,
    RequestArrived,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla, Statistic
from roma.domain.variants import RequestOptions
from roma.lab.sim.agenda import Agenda
from roma.lab.sim.devices import SimulatedDevices
from roma.lab.sim.fleet_plan import Arrival, Ended, FleetPlan, Prediction

CLIENT_THINK_TIME = 1e-4
"""Seconds between an answer and the next request of a client that sends one at a time."""

BACK_OFF = 1e-3
"""Seconds after which such a client repeats a refused request. Without a pause, immediate refusals
would cause immediate retries, and the run would consist of nothing else."""


class _Client:
    """A source of requests: at `times`, or as `arrivals`; without these, a closed loop."""

    __slots__ = ("arrivals", "model", "slo", "times")

    def __init__(
        self,
        model: str,
        slo: float,
        times: Iterator[float] | None = None,
        arrivals: Iterator[Arrival] | None = None,
    ) -> None:
        self.model = model
        self.slo = slo
        self.times = times
        self.arrivals = arrivals


class Fleet:
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
        self.agenda = Agenda()
        self._on_end, self._on_action = on_end, on_action
        patience, promise = plan.patience or plan.deadline, plan.soft or plan.deadline
        sla, names = Sla(promise, Statistic.EACH), tuple(plan.variants or plan.models)
        specs = [
            ModelSpec(name, sla, patience, plan.max_waiting, variants=plan.variants.get(name, ()))
            for name in names
        ]
        self.dispatcher = Dispatcher(
            specs,
            gpu=plan.policy,
            cpu=CpuRoundRobin,
            options=SchedulingConfig(ahead=plan.ahead, latency=plan.latency, quality=plan.quality),
            learned=plan.learned,
        )
        self._random = random.Random(plan.seed)
        kinds = plan.kinds or [plan.models] * plan.devices
        self._devices = SimulatedDevices(
            self.agenda,
            {f"gpu{i}": models for i, models in enumerate(kinds)},
            pages=plan.pages if plan.planned else None,
            latency=plan.latency,
            noise=plan.noise,
            draw=self._random,
            on_outcome=self._report,
            overlap=plan.overlap,
        )
        self.machines = self._devices.by_name
        self._open: dict[int, tuple[_Client, Request, float, bool]] = {}
        self._running: dict[int, Execute] = {}
        self._predicted: dict[int, tuple[float, float]] = {}
        self._last = 0
        self._timer_at = math.inf
        """Time of the dispatcher's next wakeup; infinite while a wakeup waits its turn."""
        self._clock: Callable[[], float] | None = None
        self._undecided: deque[tuple[Event, Execute | None]] = deque()
        self.decided_for = 0.0
        """Seconds that decisions have taken; 0 without a clock."""
        self.loads = 0
        self.handle = self.dispatcher.handle
        """Takes events; an experiment may wrap it."""
        for name, machine in self.machines.items():
            offer = None
            if plan.planned:
                offer = Capabilities(plan.pages, machine.models, together=plan.together)
            spec = ExecutorSpec(name, Device.GPU, names, is_planned=plan.planned)
            if offer is not None and (why := self.dispatcher.refusal(name, offer)) is not None:
                raise ConfigError(f"device {name}: {why}")
            self._handle(ExecutorAdded(spec))
            self._handle(ExecutorReady(name, offer))
        for time, device, delay in plan.late:
            self.agenda.at(time, self._delay, (f"gpu{device}", delay))
        self._clock = clock  # now, since devices exist before the first request arrives

    def run(self, until: float) -> None:
        """Simulate until a point in time; may be called again."""
        self.agenda.run(until)

    # Clients

    def send(self, model: str, times: Iterator[float], slo: float | None = None) -> None:
        """Add a client that sends at these times, whatever is answered."""
        self._next(_Client(model, slo or self.plan.deadline, times))

    def ask(self, model: str, arrivals: Iterator[Arrival]) -> None:
        """Add a client whose requests have deadlines of their own, in the order of arrival."""
        self._next(_Client(model, self.plan.deadline, arrivals=arrivals))

    def loop(self, model: str, concurrency: int, slo: float | None = None) -> None:
        """Add clients that each send a request when the last one has ended."""
        for _ in range(concurrency):
            client = _Client(model, slo or self.plan.deadline, None)
            # Spread over a millisecond, or the first ones would arrive at one moment.
            self.agenda.at(self.agenda.now + self._random.uniform(0, 1e-3), self._arrive, client)

    def _next(self, client: _Client) -> None:
        if client.arrivals is not None:
            arrival = next(client.arrivals, None)
            if arrival is not None:
                self.agenda.at(arrival.time, self._arrive_on_terms, (client, arrival))
            return
        assert client.times is not None
        time = next(client.times, None)
        if time is not None:
            self.agenda.at(time, self._arrive, client)

    def _arrive(self, client: _Client) -> None:
        now, plan = self.agenda.now, self.plan
        # A policy that never refuses lets a request live for `patience`; it is judged by its SLO.
        deadline = now + (client.slo if plan.patience is None else plan.patience)
        self._submit(client, deadline, None)
        if client.times is not None:
            self._next(client)

    def _arrive_on_terms(self, what: tuple[_Client, Arrival]) -> None:
        client, arrival = what
        self._submit(client, arrival.deadline, arrival.terms)
        self._next(client)

    def _submit(self, client: _Client, deadline: float, terms: RequestOptions | None) -> None:
        self._last += 1
        request = Request(self._last, client.model, self.agenda.now, deadline, terms=terms)
        self._open[request.id] = client, request, client.slo, not self._is_loaded(client.model)
        self._handle(RequestArrived(request))

    def _is_loaded(self, model: str) -> bool:
        if not self.plan.planned:
            return True
        return self._devices.holds(model)

    def _finish(self, number: int, reason: Reason | None, variant: str | None = None) -> None:
        client, request, slo, is_cold = self._open.pop(number)
        now = self.agenda.now
        self._on_end(Ended(request, now, slo, reason, is_cold, variant))
        if client.times is None and client.arrivals is None:
            pause = CLIENT_THINK_TIME if reason is None else BACK_OFF
            self.agenda.at(now + pause, self._arrive, client)

    # The dispatcher

    def _handle(self, event: Event, answered: Execute | None = None) -> None:
        """Let the dispatcher handle an event, and pass the resulting answers to the clients."""
        if self._clock is None:
            self._deliver(answered)
            self._carry_out_all(event, self.handle(event, now=self.agenda.now))
            return
        self._undecided.append((event, answered))
        if len(self._undecided) == 1:
            self._decide()

    def _decide(self) -> None:
        """Handle the next event; its commands and answers leave after the time that this takes."""
        assert self._clock is not None
        event, start = self._undecided[0][0], self._clock()
        commands = self.handle(event, now=self.agenda.now)
        spent = self._clock() - start
        self.decided_for += spent
        self.agenda.at(self.agenda.now + spent, self._on_decided, commands)

    def _on_decided(self, commands: Sequence[Command]) -> None:
        event, answered = self._undecided.popleft()
        self._deliver(answered)
        self._carry_out_all(event, commands)
        if self._undecided:
            self._decide()

    def _carry_out_all(self, event: Event, commands: Sequence[Command]) -> None:
        now = self.agenda.now
        for command in commands:
            self._carry_out(command, now)
        if isinstance(event, Woken):
            self._timer_at = math.inf
        wakeup = self.dispatcher.next_wakeup()
        if wakeup is not None and wakeup < self._timer_at:
            self._timer_at = wakeup
            self.agenda.at(wakeup, self._on_timer, wakeup)

    def _on_timer(self, wakeup: float) -> None:
        if wakeup == self._timer_at:
            self._timer_at = -math.inf
            self._handle(Woken())

    def _carry_out(self, command: Command, now: float) -> None:
        match command:
            case Execute():
                self._execute(command, now)
            case LoadModel(number, executor, model, latest):
                self.loads += 1
                self._predict(number, executor, model, None, now)
                self._devices.give(executor, Load(number, model, now, latest))
            case UnloadModel(executor, model):
                self._devices.give(executor, Unload(0, model))
            case DiscardResults(executor, model, execution):
                self._devices.give(executor, Discard(0, model, execution))
            case Reject(request, reason):
                self._finish(request, reason)
            case Fail() | Abort() | CoresNeeded():
                raise AssertionError(f"nothing fails here: {command}")
            case _:
                assert_never(command)

    def _execute(self, command: Execute, now: float) -> None:
        self._running[command.execution] = command
        batch, name, variant = command.size, command.executor, command.variant
        if self.plan.planned:
            if command.part is None:
                self._predict(command.execution, name, variant, batch, now)
            earliest, latest = command.window
            action = Infer(command.execution, variant, batch, earliest, latest, command.part)
            self._devices.give(name, action)
            return
        offer = self.plan.models[command.model]
        busy = self._devices.noisy(_seconds(offer, batch), self.machines[name])
        self.agenda.at(now + 2 * self.plan.latency + busy, self._answer, (command.execution, busy))

    def _predict(
        self, number: int, executor: str, model: str, batch: int | None, now: float
    ) -> None:
        if self._on_action is None:
            return
        device = self.dispatcher.executors[executor].planned
        assert device is not None
        lane = device.loads if batch is None else device.infers
        expected = device.loading(model) if batch is None else device.execution(model, batch)
        self._predicted[number] = expected, lane.free_at(now) + 2 * self.plan.latency

    # Devices

    def _report(self, outcome: ActionOutcome) -> None:
        number, is_ok = outcome.id, outcome.status is ActionStatus.OK
        if number == 0:
            assert is_ok, f"a model could not be unloaded: {outcome}"
            return
        predicted = self._predicted.pop(number, None)
        if predicted is not None and self._on_action is not None and is_ok:
            is_load = number not in self._running
            expected, end = predicted
            found = Prediction(is_load, expected, outcome.duration, end, self.agenda.now)
            self._on_action(found)
        if number not in self._running:
            took = outcome.duration if is_ok else None
            self._handle(LoadEnded(number, is_ok, took, outcome.status is ActionStatus.MISSED))
        elif is_ok:
            self._answer((number, outcome.duration))
        else:
            assert outcome.status is ActionStatus.MISSED, f"an action was wrong: {outcome}"
            del self._running[number]
            self._handle(ExecutionMissed(number))

    def _answer(self, what: tuple[int, float]) -> None:
        execution, busy = what
        self._handle(ExecutionEnded(execution, Result.OK, busy), self._running.pop(execution))

    def _deliver(self, answered: Execute | None) -> None:
        if answered is None or not answered.is_last:
            return
        for request in answered.requests:
            if request in self._open:  # else it was refused while it ran
                self._finish(request, None, answered.variant)

    def _delay(self, what: tuple[str, float]) -> None:
        name, delay = what
        self.machines[name].delay += delay


def _seconds(offer: ModelCapabilities, batch: int) -> float:
    """Return the seconds of a batch of any size, extrapolated linearly beyond the largest."""
    sizes = sorted(offer.executions)
    if batch <= sizes[-1]:
        return offer.seconds(batch)
    low, high = sizes[-2:]
    slope = (offer.executions[high] - offer.executions[low]) / (high - low)
    return offer.executions[high] + slope * (batch - high)

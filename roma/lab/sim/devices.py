"""Planned devices in virtual time: actions within their windows, under the rules of a real device.

The rules are `roma.device.core`. An action takes the time of its profile, times noise, and every
message takes `latency` on its way.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from roma.device.core import Begin, DeviceCore, Step
from roma.device.overlap import seconds_together
from roma.domain.actions import (
    Action,
    ActionOutcome,
    ActionStatus,
    Infer,
    Load,
    ModelCapabilities,
)
from roma.lab.sim.agenda import Agenda


@dataclass(frozen=True, slots=True)
class Noise:
    """Deviation of actions from their profile: a lognormal factor, and rare stalls.

    `spread` is the coefficient of variation; `is_normal` makes the factor a normal one. With
    probability `stalls` an action takes `stall` seconds longer. The defaults are the prediction
    errors of Clockwork (Fig. 10): a p99 of some 50 µs beyond a prediction of 3 ms, and more than 10
    ms in a few cases of a million.
    """

    spread: float = 0.004
    stalls: float = 1e-6
    stall: float = 0.01
    is_normal: bool = False
    sigma: float = field(init=False, repr=False, compare=False)
    """σ of the lognormal factor."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", math.sqrt(math.log(1 + self.spread**2)))


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device: under the rules of a planned one, or plain, running whatever it receives."""

    models: Mapping[str, ModelCapabilities]
    core: DeviceCore | None
    group: list[Infer] = field(default_factory=list)
    """INFERs that begin together with one that has not come yet."""
    delay: float = 0.0
    """Seconds by which the next action is late."""
    wakeup: float = math.inf


class SimulatedDevices:
    """The devices by name; `on_outcome` gets every outcome when its message arrives."""

    def __init__(
        self,
        agenda: Agenda,
        models: Mapping[str, Mapping[str, ModelCapabilities]],
        *,
        pages: int | None,
        latency: float,
        noise: Noise,
        draw: random.Random,
        on_outcome: Callable[[ActionOutcome], None],
        overlap: float = 0.0,
    ) -> None:
        """`models` are the devices' by name; without `pages` they are plain.

        `overlap` is that of `seconds_together`, for batches that are executed at once.
        """
        self._agenda = agenda
        self._latency = latency
        self._noise = noise
        self._draw = draw
        self._on_outcome = on_outcome
        self._overlap = overlap
        self.by_name: dict[str, SimulatedDevice] = {}
        for name, offered in models.items():
            needs = {model: offer.pages for model, offer in offered.items()}
            core = None if pages is None else DeviceCore(pages, needs)
            self.by_name[name] = SimulatedDevice(offered, core)

    def give(self, device: str, action: Action) -> None:
        """Send an action to a planned device."""
        what = self.by_name[device], action
        self._agenda.at(self._agenda.now + self._latency, self._take, what)

    def holds(self, model: str) -> bool:
        """Return True if a planned device has loaded a model."""
        return any(d.core is not None and model in d.core.loaded for d in self.by_name.values())

    def noisy(self, seconds: float, device: SimulatedDevice) -> float:
        """Return the time that an action takes of which these seconds are expected."""
        draw, noise = self._draw, self._noise
        if noise.is_normal:
            taken = seconds * max(0.0, draw.gauss(1.0, noise.spread))
        else:
            taken = seconds * math.exp(draw.gauss(0.0, noise.sigma)) if noise.sigma else seconds
        if noise.stalls and draw.random() < noise.stalls:
            taken += noise.stall
        taken += device.delay
        device.delay = 0.0
        return taken

    def _take(self, what: tuple[SimulatedDevice, Action]) -> None:
        device, action = what
        core, now = device.core, self._agenda.now
        assert core is not None
        if isinstance(action, Infer) and action.part is not None:
            device.group.append(action)
            if action.part.with_next:
                return
            group, device.group = device.group, []
            self._follow(device, core.submit_together(group, now))
            return
        self._follow(device, core.submit(action, now))

    def _follow(self, device: SimulatedDevice, steps: Sequence[Step]) -> None:
        now, core = self._agenda.now, device.core
        assert core is not None
        for step in steps:
            if isinstance(step, Begin):
                seconds = _alone(device, step.action)
                if step.others:
                    alone = [seconds, *(_alone(device, other) for other in step.others)]
                    seconds = seconds_together(alone, self._overlap)
                ends = now + self.noisy(seconds, device)
                for action in (step.action, *step.others):
                    self._agenda.at(ends, self._done, (device, action.id))
            else:
                self._agenda.at(now + self._latency, self._on_outcome, step)
        wakeup = core.next_wakeup()
        if wakeup is not None and wakeup > now and wakeup != device.wakeup:
            device.wakeup = wakeup
            self._agenda.at(wakeup, self._wake, device)

    def _wake(self, device: SimulatedDevice) -> None:
        device.wakeup = math.inf
        assert device.core is not None
        self._follow(device, device.core.advance(self._agenda.now))

    def _done(self, what: tuple[SimulatedDevice, int]) -> None:
        device, number = what
        assert device.core is not None
        self._follow(device, device.core.end(number, ActionStatus.OK, self._agenda.now))


def _alone(device: SimulatedDevice, action: Infer | Load) -> float:
    """Return the seconds that an action takes alone."""
    offer = device.models[action.model]
    if isinstance(action, Load):
        return offer.load
    seconds = offer.seconds(action.batch)
    segment = None if action.part is None else action.part.segment
    return seconds if segment is None else segment.share * seconds

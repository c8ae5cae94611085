"""Setting of a simulated fleet: devices, models, policy, noise, and what it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dispatcher.schedulers.base import Scheduler
from roma.config.policy_file import Policy
from roma.config.scheduling import QualityConfig
from roma.domain.actions import ModelCapabilities
from roma.domain.events import Reason
from roma.domain.model import Request
from roma.domain.variants import RequestOptions, Variant
from roma.lab.sim.devices import Noise


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Setup of a fleet simulation. Times in seconds; `deadline` is the default SLO of requests.

    `patience`: lifetime of requests if it is not the SLO (policies that never refuse). `late` are
    disturbances: from a given time on, the actions of a device are delayed by so many seconds,
    once. Devices execute `together` batches at once, which saves `overlap` (`seconds_together`).
    """

    models: Mapping[str, ModelCapabilities]
    devices: int
    pages: int
    deadline: float
    policy: type[Scheduler]
    planned: bool = True
    patience: float | None = None
    latency: float = 1e-4
    ahead: float = 0.005
    noise: Noise = field(default_factory=Noise)
    late: Sequence[tuple[float, int, float]] = ()
    seed: int = 1
    max_waiting: int = 100_000
    kinds: Sequence[Mapping[str, ModelCapabilities]] = ()
    """Capabilities of each device, where they differ; then `devices` is their number."""
    variants: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    """By public name: the variants of which `models` then consist. A model without variants has its
    own name."""
    quality: QualityConfig = field(default_factory=QualityConfig)
    learned: Policy | None = None
    """The trained policy of `qos-rl`."""
    soft: float | None = None
    """The soft deadline, after which answers lose value; `deadline` if there is none."""
    together: int = 1
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A future request: points on the agenda's clock, and its client's request options."""

    time: float
    deadline: float
    terms: RequestOptions | None = None


@dataclass(slots=True)
class Ended:
    """A request's end. `reason` is None for an answer; `is_cold`: its model was not loaded.

    `variant` is the one that answered it.
    """

    request: Request
    ended: float
    slo: float
    reason: Reason | None
    is_cold: bool
    variant: str | None = None

    @property
    def model(self) -> str:
        """The request's model."""
        return self.request.model

    @property
    def arrived(self) -> float:
        """Its time of arrival."""
        return self.request.arrived

    @property
    def response(self) -> float:
        """Seconds since its arrival."""
        return self.ended - self.arrived

    @property
    def is_good(self) -> bool:
        """True if it was answered within its SLO."""
        return self.reason is None and self.response <= self.slo


@dataclass(slots=True)
class Prediction:
    """An action of a planned device: predicted and actual time, in seconds."""

    is_load: bool
    expected: float
    duration: float
    expected_end: float
    end: float

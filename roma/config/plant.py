"""The `plant` section of roma.yaml: the simulator's model of costs, loads and faults.

Costs come from a profile (`profile:` of the file, written by `roma profile`) or from this section,
which takes precedence. Times are seconds, CPU is cores, cost is core-seconds per request.
"""

from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from roma.config.profile import Positive, Share
from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain.actions import MOST_BATCH
from roma.workload.arrivals import Process, Profile
from roma.workload.errors import WorkloadError
from roma.workload.trace import TraceKind

Duration = Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]

Spell = Annotated[float, Field(ge=0.1, le=10_000_000, allow_inf_nan=False)]


def _as_text(value: object) -> object:
    """Return a single rate, which YAML reads as a number, as text without an exponent."""
    return f"{Decimal(repr(value)):f}" if isinstance(value, (int, float)) else value


class LoadConfig(Section):
    """Load of one model: exactly one of `profile`, `on_off`, `trace`."""

    profile: Annotated[str, BeforeValidator(_as_text), Field(max_length=1_000_000)] | None = None
    """Rates in req/s, one per step, joined by dashes: 20-20-80-80."""
    step: Duration = 35.0
    """Length of a step in seconds; the last step lasts until the end."""
    on_off: tuple[Rate, Spell, Spell] | None = None
    """[rate, on, off]: `off` seconds of silence, then `on` seconds at `rate` req/s, repeated."""
    trace: FilePath | None = None
    """A trace file, relative to roma.yaml; it repeats when it ends."""
    kind: TraceKind = TraceKind.COUNTS
    """Meaning of a line of the trace."""
    column: str | None = None
    """Column of a CSV trace."""
    process: Process = Process.POISSON
    """Arrival process that spreads requests over the rate of a profile or of a burst."""

    @model_validator(mode="after")
    def _check(self) -> "LoadConfig":
        own = {"profile": ("step", "process"), "on_off": ("process",), "trace": ("kind", "column")}
        given = [k for k in own if getattr(self, k) is not None]
        if len(given) != 1:
            shown = ", ".join(given) or "none"
            raise Fault("given", shown, f"exactly one of {', '.join(own)}")
        for key in ("step", "process", "kind", "column"):
            value = getattr(self, key)
            if key not in own[given[0]] and value != type(self).model_fields[key].default:
                raise Fault(key, value, f"absent beside {given[0]}, which has none")
        if self.profile is not None:
            try:
                Profile.parse(self.profile, step=self.step)
            except WorkloadError:
                bound = "rates >= 0 joined by '-', like 20-20-80"
                raise Fault("profile", self.profile[:60], bound) from None
        return self


class DevicePlant(Section):
    """Times of a model, or of one of its variants, on a planned GPU."""

    batches: dict[int, Positive]
    """Seconds of a batch, by its size: as on a device, 1 is among them and none is above 64."""
    load: Positive
    """Seconds to load the weights."""
    pages: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Pages of 16 MiB that the weights take."""

    @model_validator(mode="after")
    def _check(self) -> "DevicePlant":
        if 1 not in self.batches or not all(1 <= size <= MOST_BATCH for size in self.batches):
            shown = ", ".join(map(str, self.batches)) or "none"
            raise Fault("batches", shown, f"sizes from 1 to {MOST_BATCH}, 1 among them")
        return self


class ModelPlant(Section):
    """Cost of a request of one model in the simulation; see `ModelProfile`."""

    cost: Positive | None = None
    """Core-seconds per request; default: the profile's."""
    noise: Share | None = None
    """Coefficient of variation of the cost (lognormal)."""
    parallelism: Annotated[float, Field(ge=0.1, le=256)] | None = None
    """Cores that one request can keep busy."""
    overhead: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None
    """Seconds of a request that more cores do not shorten."""
    gpu_time: Positive | None = None
    """P_G: seconds of one request on a GPU."""
    gpu_noise: Share | None = None
    """Coefficient of variation of P_G (lognormal)."""
    device: DevicePlant | None = None
    """Its times on planned GPUs (executables with `actions`)."""
    variants: dict[str, DevicePlant] = Field(default_factory=dict)
    """Those of each of its variants, if it has any."""
    load: LoadConfig | None = None
    """Load of the model; default: none."""


class PlantConfig(Section):
    """The simulated plant: costs, loads and the faults of the actuation path."""

    models: dict[str, ModelPlant] = Field(default_factory=dict)
    duration: Duration = 300.0
    """Seconds to simulate."""
    actuation_delay: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Seconds from a decision to the quota it sets."""
    burst: Annotated[float, Field(ge=0, le=1)] | None = None
    """Unused quota that a period may inherit, as a share of the quota; default:
    `control.cfs_burst`, which real quotas use. Where the engine is on another host there is none,
    as there in reality."""
    pages: Annotated[int, Field(ge=1, le=10_000_000)] = 1984
    """Pages of 16 MiB that each planned GPU has for weights; the default is 31 GiB."""
    device_noise: Share = 0.0
    """Coefficient of variation of actions on planned GPUs (lognormal)."""
    usage_error: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    """Factor by which CPU usage, and with it every cost estimate, is misread."""

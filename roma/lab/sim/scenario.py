"""The input of a simulation: a configuration, costs of requests, their arrivals, and faults."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from roma.config.placement import executables
from roma.config.plant import LoadConfig, ModelPlant, PlantConfig
from roma.config.profile import ModelProfile
from roma.config.schema import Config
from roma.domain.actions import ModelCapabilities
from roma.domain.errors import ConfigError, naming
from roma.domain.model import Device
from roma.lab.sim.loads import send_times


@dataclass(frozen=True, slots=True)
class ExecutorFault:
    """An executable is lost at `time`, for `duration` seconds."""

    time: float
    executor: str
    duration: float


@dataclass(frozen=True, slots=True)
class SupervisorFault:
    """A supervisor dies at `time` and is back, with empty memory, after `duration` seconds."""

    time: float
    worker: str
    duration: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated setup. Times in seconds; `arrivals` are ascending send times by model.

    `hide_age` reports the ages of waiting requests as 0, as for a controller that measures
    completed requests only. `script`, if given, sets the cores of executables by control period,
    instead of the supervisors. `is_coarse`: executables never wait for each other's cores, and a
    quota is spent to the moment. `front_end` is the time in seconds that every request takes before
    it reaches the dispatcher, on any device.
    """

    config: Config
    profiles: Mapping[str, ModelProfile]
    arrivals: Mapping[str, Iterator[float]]
    duration: float
    seed: int = 1
    actuation_delay: float = 0.0
    burst: float = 0.0
    usage_error: float = 1.0
    hide_age: bool = False
    is_coarse: bool = False
    front_end: float = 0.0
    faults: tuple[ExecutorFault | SupervisorFault, ...] = ()
    script: Mapping[str, Sequence[float]] | None = None
    devices: Mapping[str, ModelCapabilities] = field(default_factory=dict)
    """Models or variants as each planned device measures them; empty without such devices."""


def from_config(config: Config, *, seed: int = 1) -> Scenario:
    """Return the scenario of a roma.yaml with a `plant` section; raise ConfigError naming a key."""
    plant = config.plant
    if plant is None:
        raise ConfigError("plant: missing; `roma simulate` needs to know costs and loads")
    loads: dict[str, LoadConfig] = {
        name: m.load for name, m in plant.models.items() if m.load is not None
    }
    if not loads:
        raise ConfigError("plant.models: no load; at least one model needs `load`")
    _check_listed(config)
    _check_variants(config, plant)
    config = _with_one_dispatcher(config)
    is_planned = any(e.spec.is_planned for e in executables(config))
    on_gpu = any(e.spec.device is Device.GPU for e in executables(config))
    return Scenario(
        config=config,
        profiles={name: _profile(config, name, on_gpu) for name in config.models if not is_planned},
        devices=_devices(config, plant) if is_planned else {},
        arrivals={
            name: _arrivals(name, load, plant.duration, seed_of(seed, i))
            for i, (name, load) in enumerate(loads.items())
        },
        duration=plant.duration,
        seed=seed,
        actuation_delay=plant.actuation_delay,
        burst=config.control.cfs_burst if plant.burst is None else plant.burst,
        usage_error=plant.usage_error,
    )


def _arrivals(name: str, load: LoadConfig, duration: float, seed: int) -> Iterator[float]:
    with naming(f"plant.models.{name}.load"):
        return send_times(load, duration, seed=seed)


def _with_one_dispatcher(config: Config) -> Config:
    """Return the configuration with one dispatcher, which here has all requests and all slots."""
    control = config.control.model_copy(update={"dispatchers": ()})
    gateway = config.gateway.model_copy(update={"processes": 1})
    return config.model_copy(update={"control": control, "gateway": gateway})


def _check_listed(config: Config) -> None:
    """Refuse workers whose executables the file does not list: every request would be refused."""
    for i, worker in enumerate(config.workers):
        if worker.is_discovered:
            raise ConfigError(
                f"workers.{i}.backend = {worker.backend.value}: must be process, docker or static: "
                f"a simulation cannot know the pods of {worker.name}"
            )


def _check_variants(config: Config, plant: PlantConfig) -> None:
    for name, given in plant.models.items():
        known = config.models[name].variants
        for variant in given.variants.keys() - known.keys():
            bound = f"one of {', '.join(known)}" if known else f"absent: {name} has no variants"
            raise ConfigError(f"plant.models.{name}.variants.{variant}: must be {bound}")


def _devices(config: Config, plant: PlantConfig) -> dict[str, ModelCapabilities]:
    """Return the times of every model, or of its variants, on planned devices."""
    found = {}
    for name, model in config.models.items():
        given = plant.models.get(name, ModelPlant())
        times = given.variants if model.variants else {name: given.device}
        for variant in model.variants or (name,):
            key = f"variants.{variant}" if model.variants else "device"
            if (known := times.get(variant)) is None:
                raise ConfigError(f"plant.models.{name}.{key}: missing; a planned GPU runs it")
            found[variant] = ModelCapabilities(known.pages, known.load, known.batches)
    return found


def seed_of(seed: int, index: int) -> int:
    """Return the seed of stream number `index` of a run; runs of under a million share none."""
    # Never below 0: `random.Random` takes the absolute value.
    return (seed * 1_000_003 + index) % 2**62


def _profile(config: Config, name: str, on_gpu: bool) -> ModelProfile:
    """Return the profile of one model: the plant's values override measured ones."""
    measured = config.models[name].profile
    assert config.plant is not None
    plant = config.plant.models.get(name, ModelPlant())
    given = plant.model_dump(exclude={"load", "device", "variants"})
    values = measured.model_dump() if measured else {}
    values |= {key: value for key, value in given.items() if value is not None}
    if "cost" not in values:
        raise ConfigError(f"plant.models.{name}.cost: missing, and no `profile` has it")
    if on_gpu and values.get("gpu_time") is None:
        raise ConfigError(f"plant.models.{name}.gpu_time: missing, and no `profile` has it")
    return ModelProfile.model_validate(values)

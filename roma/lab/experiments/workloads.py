"""Workloads of the experiments: models, promises, loads and costs of requests, as data.

The service times are not in the ROMA paper. Those used for its four models are derived:

* CPU: single-thread inference of one image with TensorFlow 2 takes 0.092 (ResNet50), 0.29 (VGG16)
  and 0.035 s (GoogLeNet: InceptionV3's 0.097 s by their operations, 1.6 to 5.7 GMAC) on a core of
  2021; the paper's cores are of 2014 (x 2.2), and TensorFlow Serving reads its images from JSON
  (+ 0.05 s). Skylines is a small network and classical vision: assumed 0.10.
* GPU: 20 ms for the same JSON, plus the operations at the speed an M60 reaches with one image,
  then all x 1.3, so that Table 1's peaks overfill two GPUs: with one core per worker the paper's
  RR+min breaks its promises in every test.

`roma experiment run roma-sensitivity` (all x 0.7 and x 1.4) shows the results that depend on them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roma.config.plant import LoadConfig
from roma.config.schema import Config
from roma.lab.experiments.systems import System
from roma.lab.sim.loads import send_times
from roma.lab.sim.scenario import Scenario, from_config, seed_of
from roma.workload import recorded, synthetic
from roma.workload.arrivals import poisson_rates

Arrivals = Callable[[float, int], Iterator[float]]
"""(duration in seconds, seed) -> ascending send times."""


INITIAL = 1.0
"""Cores of every executable before its controller's first decision."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """The cost of a request: core-seconds, seconds on a GPU, cores it can keep busy."""

    cost: float
    gpu_time: float
    parallelism: float = 4.0
    noise: float = 0.1
    gpu_noise: float = 0.05


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A generated load: `kind` names a function of `roma.workload.synthetic`, `rate` its mean."""

    kind: str
    rate: float

    def __call__(self, duration: float, seed: int) -> Iterator[float]:
        """Yield send times."""
        rates = getattr(synthetic, self.kind)(self.rate, int(duration), seed=seed)
        return poisson_rates(rates, seed=seed)


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """A recorded load from a directory of traces; `rate` is its mean in req/s."""

    name: str
    directory: Path
    rate: float
    offset: int = 0
    speed: int = 1

    def __call__(self, duration: float, seed: int) -> Iterator[float]:
        """Yield send times."""
        window = recorded.TraceWindow(int(duration), self.offset, self.speed)
        return recorded.arrivals(self.name, self.directory, window, seed=seed, rate=self.rate)


@dataclass(frozen=True, slots=True)
class Model:
    """A model in a workload; `load` is a section of roma.yaml or a generator."""

    name: str
    response_time: float
    service: RequestCost
    load: LoadConfig | Arrivals


@dataclass(frozen=True, slots=True)
class Workload:
    """Models on identical workers. Times in seconds, CPU in cores.

    `front_end` is the time every request takes before any decision about it (`Scenario`).
    """

    name: str
    title: str
    models: tuple[Model, ...]
    workers: int = 2
    cores: float = 6.0
    gpus: int = 1
    duration: float = 300.0
    minimum: float = 0.1
    front_end: float = 0.0

    def scaled(self, factor: float) -> "Workload":
        """Return the same load on a plant whose every service time is multiplied."""
        models = tuple(
            replace(
                m,
                service=replace(
                    m.service,
                    cost=m.service.cost * factor,
                    gpu_time=m.service.gpu_time * factor,
                ),
            )
            for m in self.models
        )
        return replace(self, models=models)

    def arrivals(self, seed: int) -> dict[str, Iterator[float]]:
        """Return fresh send times of every model."""
        found = {}
        for i, model in enumerate(self.models):
            own = seed_of(seed, i)
            if isinstance(model.load, LoadConfig):
                found[model.name] = send_times(model.load, self.duration, seed=own)
            else:
                found[model.name] = model.load(self.duration, own)
        return found

    def config(self, system: System) -> Config:
        """Return the roma.yaml of this workload under this system."""
        return Config.model_validate(
            {
                "models": {m.name: self._model(m, system) for m in self.models},
                "workers": [
                    {
                        "name": f"w{i + 1}",
                        "backend": "docker",
                        "cores": self.cores,
                        "gpus": self.gpus,
                        "base_port": 20_000 + 100 * i,
                    }
                    for i in range(self.workers)
                ],
                "scheduling": {"gpu": system.gpu, "cpu": system.cpu, "spill": system.spill},
                "control": {
                    "law": system.law,
                    "gains": dict(system.gains),
                    "sharing": system.sharing,
                    "period": system.period,
                },
                "plant": {
                    "duration": self.duration,
                    "burst": system.burst,
                    "models": {m.name: {"load": {"profile": "0"}} for m in self.models},
                },
            }
        )

    def scenario(self, system: System, seed: int, **changes: Any) -> Scenario:
        """Return one run; `changes` replace fields of the scenario (faults, delay, …).

        Without burst the plant is coarse, as it was when the lab's laws were chosen and their bound
        was proved. With burst, executables would use more cores on a coarse plant than their worker
        has.
        """
        scenario = from_config(self.config(system), seed=seed)
        return replace(
            scenario,
            arrivals=self.arrivals(seed),
            hide_age=system.hide_age,
            is_coarse=system.burst == 0,
            front_end=self.front_end,
            **changes,
        )

    def _model(self, model: Model, system: System) -> dict[str, Any]:
        service = model.service
        return {
            "path": model.name,
            "sla": _sla(model.response_time, system),
            "cpu": {
                **self._cpu(system),
                "threads": max(1, round(service.parallelism)),
                "in_flight": system.in_flight,
            },
            "max_waiting": 100_000,
            "profile": {
                "cost": service.cost,
                "noise": service.noise,
                "parallelism": service.parallelism,
                "gpu_time": service.gpu_time if self.gpus else None,
                "gpu_noise": service.gpu_noise,
            },
        }

    def _cpu(self, system: System) -> dict[str, float]:
        fair = self.cores / len(self.models)
        if system.static is None:
            return {"min": self.minimum, "initial": min(INITIAL, fair)}
        cores = min(fair, system.static / len(self.models))
        return {"min": cores, "max": cores}


def one_worker(
    models: Mapping[str, Mapping[str, Any]],
    plant: Mapping[str, Any],
    *,
    cores: float,
    duration: float,
) -> dict[str, Any]:
    """Return a roma.yaml with these sections of models and plant, and a worker."""
    return {
        "models": {name: {"path": name, **model} for name, model in models.items()},
        "workers": [{"name": "w", "cores": cores}],
        "plant": {"duration": duration, "models": dict(plant)},
    }


def _sla(response_time: float, system: System) -> dict[str, Any]:
    sla: dict[str, Any] = {"response_time": response_time}
    if system.deadline is not None:
        sla["deadline"] = response_time * system.deadline
    if system.statistic is not None:
        sla |= {"statistic": system.statistic, "alpha": system.alpha}
    return sla


def steps(text: str) -> LoadConfig:
    """Return a load in the paper's notation: one rate per 35 seconds."""
    return LoadConfig(profile=text, step=35.0)


SKYLINES = RequestCost(0.10, 0.026)
GOOGLENET = RequestCost(0.13, 0.028)
RESNET = RequestCost(0.25, 0.034)
VGG = RequestCost(0.70, 0.044)

SKY_GNET = Workload(
    "sky+gnet",
    "Skylines + G.Net",
    (
        Model("skylines", 0.38, SKYLINES, steps("20-20-80-80-20-20-20-20")),
        Model("gnet", 0.45, GOOGLENET, steps("20-20-20-20-70-70-20-20")),
    ),
)
RES_VGG = Workload(
    "res+vgg",
    "ResNet + VGG16",
    (
        Model("resnet", 0.54, RESNET, steps("40-30-20-40-30-20-30-30")),
        Model("vgg16", 0.56, VGG, steps("20-30-40-20-40-40-30-30")),
    ),
)
ALL_APPS = Workload(
    "all-apps",
    "All apps",
    (
        Model("skylines", 0.38, SKYLINES, steps("10-10-10-10-30-30-30-10")),
        Model("gnet", 0.45, GOOGLENET, steps("10-30-30-30-10-10-10-10")),
        Model("resnet", 0.54, RESNET, steps("10-20-30-10-20-30-10-20")),
        Model("vgg16", 0.56, VGG, steps("10-30-20-10-30-20-10-20")),
    ),
)
TABLE1 = (SKY_GNET, RES_VGG, ALL_APPS)

LIGHT = RequestCost(0.02, 0.008, parallelism=1.0)
MEDIUM = RequestCost(0.06, 0.015, parallelism=2.0)

IDLE_BURST = Workload(
    "idle-burst",
    "Idle, then bursts (CPU only)",
    (
        Model("light", 0.25, LIGHT, LoadConfig(on_off=(60, 20, 40))),
        Model("medium", 0.40, MEDIUM, LoadConfig(on_off=(30, 15, 35))),
    ),
    workers=1,
    gpus=0,
)
OVERLOAD = Workload(
    "overload",
    "70 s of overload (CPU only)",
    (
        Model("light", 0.25, LIGHT, LoadConfig(profile="40-160-40-40", step=70.0)),
        Model("medium", 0.40, MEDIUM, LoadConfig(profile="20-80-20-20", step=70.0)),
    ),
    workers=1,
    gpus=0,
)
DIURNAL = Workload(
    "diurnal",
    "Diurnal (CPU only)",
    (
        Model("light", 0.25, LIGHT, Synthetic("diurnal", 50.0)),
        Model("medium", 0.40, MEDIUM, Synthetic("diurnal", 20.0)),
    ),
    workers=1,
    gpus=0,
    duration=600.0,
)
BURSTY = Workload(
    "bursty",
    "Bursty, with GPUs",
    (
        Model("skylines", 0.38, SKYLINES, Synthetic("bursty", 25.0)),
        Model("gnet", 0.45, GOOGLENET, Synthetic("bursty", 20.0)),
        Model("resnet", 0.54, RESNET, Synthetic("bursty", 15.0)),
    ),
    duration=600.0,
)
NOISY = Workload(
    "noisy",
    "Noisy (CPU only)",
    (
        Model("light", 0.25, LIGHT, Synthetic("noisy", 60.0)),
        Model("medium", 0.40, MEDIUM, Synthetic("noisy", 25.0)),
    ),
    workers=1,
    gpus=0,
)
PARETO = (*TABLE1, IDLE_BURST, DIURNAL, BURSTY, NOISY, OVERLOAD)


def pareto(traces: Path | None) -> tuple[Workload, ...]:
    """Return PARETO; with a directory of public traces, the workloads that they drive, too.

    Raises WorkloadError for a trace that cannot be read.
    """
    if traces is None:
        return PARETO
    driven = recorded_workloads(traces)
    for workload in driven:
        workload.arrivals(0)  # reads the traces: their turn comes after hours of other runs
    return PARETO + driven


def recorded_workloads(directory: Path) -> tuple[Workload, ...]:
    """Return the workloads driven by public traces (see `roma.workload.recorded`)."""
    return (
        replace(
            DIURNAL,
            name="trace-diurnal",
            title="Diurnal trace (CPU only)",
            models=(
                Model("light", 0.25, LIGHT, RecordedLoad("diurnal", directory, 50.0, speed=6)),
                Model("medium", 0.40, MEDIUM, RecordedLoad("llm", directory, 10.0, offset=600)),
            ),
        ),
        replace(
            BURSTY,
            name="trace-bursty",
            title="Bursty traces, with GPUs",
            models=(
                Model("skylines", 0.38, SKYLINES, RecordedLoad("bursty", directory, 30.0, 1440)),
                Model("gnet", 0.45, GOOGLENET, RecordedLoad("diurnal", directory, 20.0, speed=6)),
                Model("resnet", 0.54, RESNET, RecordedLoad("bursty", directory, 15.0, speed=6)),
            ),
        ),
    )

"""The supervisor core that a configuration describes; live and simulated alike."""

from collections import Counter

from controllers import registry
from roma.config import Config
from roma.model import Device
from roma.placement import Executable, executables, on_worker
from roma.workers import WorkerConfig
from supervisor.core import Managed, Supervisor


def build_core(config: Config, worker: WorkerConfig) -> Supervisor:
    """Return the core that a configuration describes for one worker."""
    control = config.control
    law = registry.build(control.law, control.gains)
    return Supervisor(
        managed(config, worker),
        law,
        capacity=worker.allocatable,
        gamma=control.gamma,
        dispatchers=config.gateway.workers,
    )


def managed(config: Config, worker: WorkerConfig) -> list[Managed]:
    """Return what a worker's supervisor controls."""
    sharing = Counter(
        model for e in executables(config) if e.spec.device is Device.CPU for model in e.spec.models
    )
    specs = {spec.name: spec for spec in config.model_specs}
    return [
        Managed(
            name=e.name,
            model=specs[e.spec.models[0]],
            minimum=e.min_cores,
            maximum=min(e.max_cores, worker.allocatable),
            initial=e.spec.cores,
            workers=sharing[e.spec.models[0]],
            cost=_cost(config, e.spec.models[0]),
            threads=e.spec.threads,
            in_flight=e.spec.in_flight,
        )
        for e in controlled(config, worker)
    ]


def controlled(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of a worker whose cores can be set."""
    return [e for e in on_worker(config, worker) if e.controlled]


def _cost(config: Config, model: str) -> float | None:
    profile = config.models[model].profile
    return None if profile is None else profile.cost

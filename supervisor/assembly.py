"""The supervisor core that a configuration describes; live and simulated alike."""

from collections import Counter

from controllers import registry
from roma.config import Config
from roma.model import Device
from roma.placement import Executable, executables, on_worker
from roma.workers import WorkerConfig
from supervisor.core import Managed, Supervisor
from supervisor.sharing import GRID, Want, share


def build_core(config: Config, worker: WorkerConfig) -> Supervisor:
    """Return the core that a configuration describes for one worker."""
    control = config.control
    law = registry.build(control.law, control.gains)
    return Supervisor(
        managed(config, worker),
        law,
        capacity=worker.allocatable,
        sharing=control.sharing,
        gamma=control.gamma,
        dispatchers=config.gateway.workers,
    )


def managed(config: Config, worker: WorkerConfig) -> list[Managed]:
    """Return what a worker's supervisor controls."""
    sharing = Counter(
        model for e in executables(config) if e.spec.device is Device.CPU for model in e.spec.models
    )
    # What a GPU serves needs no cores that wait for a rare request.
    on_gpus = {
        model for e in executables(config) if e.spec.device is Device.GPU for model in e.spec.models
    }
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
            idles_by_cost=(
                config.models[e.spec.models[0]].cpu.min is None
                and e.spec.models[0] not in on_gpus
                # That law has an idle minimum of its own, which counts on the bucket.
                and config.control.law != "late_share"
            ),
            weight=config.models[e.spec.models[0]].weight,
            burst=config.control.cfs_burst,
            quota_period=config.control.cfs_period,
        )
        for e in controlled(config, worker)
    ]


def unmet_idle_minima(config: Config, worker: WorkerConfig) -> dict[str, float]:
    """Return, by executable that lacks them, the cores with which a request meets the set point.

    Without load, for models whose cost is known beforehand: because the executable may not have so
    many, or because those of all do not fit the worker, which cuts the largest.
    """
    core = build_core(config, worker)
    wants = {name: core.idle_minimum(name) for name in core.status}
    granted = share([Want(n, n) for n in wants.values()], worker.allocatable).granted
    needs = {m.name: (m.cost or 0.0) / m.model.sla.set_point for m in managed(config, worker)}
    return {
        name: max(need, needs[name])
        for (name, need), cores in zip(wants.items(), granted, strict=True)
        if cores < need - GRID
        or (core.status[name].managed.idles_by_cost and cores < needs[name] - GRID)
    }


def controlled(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of a worker whose cores can be set."""
    return [e for e in on_worker(config, worker) if e.controlled]


def _cost(config: Config, model: str) -> float | None:
    profile = config.models[model].profile
    return None if profile is None else profile.cost

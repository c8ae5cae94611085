"""Builds the supervisor core from a configuration; the same live and simulated."""

from collections import defaultdict

from controllers import registry
from controllers.staffing import Promise, bucket_need
from roma.config.control import LATE_SHARE
from roma.config.executable import Executable
from roma.config.placement import executables, on_worker
from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.domain.model import Device
from supervisor.core import Supervisor
from supervisor.executables import Managed
from supervisor.sharing import GRID, CoreRequest, share


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
        dispatchers=config.dispatcher_count,
    )


def managed(config: Config, worker: WorkerConfig) -> list[Managed]:
    """Return the executables that a worker's supervisor controls."""
    replicas: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for each in config.workers:
        for e in on_worker(config, each):
            if e.spec.device is Device.CPU:
                for model in e.spec.models:
                    replicas[model].append((_maximum(e, each), e.name))
    on_gpus = _on_gpus(config)
    specs, control = {spec.name: spec for spec in config.model_specs}, config.control
    found = []
    for e in controlled(config, worker):
        name, maximum = e.spec.models[0], _maximum(e, worker)
        settings, on_gpu = config.models[name], name in on_gpus
        made = Managed(
            name=e.name,
            model=specs[name],
            minimum=e.min_cores,
            maximum=maximum,
            initial=e.spec.cores,
            replicas=tuple([replica for _, replica in replicas[name]]),
            smaller=tuple(sorted(r for r in replicas[name] if r[0] < maximum)),
            cost=None if settings.profile is None else settings.profile.cost,
            threads=e.spec.threads,
            in_flight=e.spec.in_flight,
            # `late_share` has an idle minimum of its own, which relies on the bucket.
            idles_by_cost=settings.cpu.min is None and not on_gpu and control.law != LATE_SHARE,
            weight=settings.weight,
            burst=control.cfs_burst,
            quota_period=control.cfs_period,
            on_gpu=on_gpu,
        )
        found.append(made)
    return found


def _maximum(executable: Executable, worker: WorkerConfig) -> float:
    return min(executable.max_cores, worker.allocatable)


def unmet_idle_minima(config: Config, worker: WorkerConfig) -> dict[str, float]:
    """Return the cores for a request in time after silence, by executable that lacks them.

    Only for models whose cost is known beforehand, that no GPU serves and whose `cpu.min` nobody
    set. An executable lacks them because its maximum is lower, or because those of all do not fit
    the worker, which then cuts the largest.
    """
    core = build_core(config, worker)
    on_gpus = _on_gpus(config)
    needs = {
        m.name: _first_request(m, config.control.law)
        for m in managed(config, worker)
        if config.models[m.model.name].cpu.min is None and m.model.name not in on_gpus
    }
    wants = {
        name: max(core.idle_minimum(name), min(needs.get(name, 0.0), status.managed.maximum))
        for name, status in core.status.items()
    }
    granted = share([CoreRequest(n, n) for n in wants.values()], worker.allocatable).granted
    return {
        name: max(wants[name], needs[name])
        for name, cores in zip(wants, granted, strict=True)
        if name in needs and cores < max(wants[name], needs[name]) - GRID
    }


def _first_request(managed: Managed, law: str) -> float:
    """Return the cores that `law` needs for one request after silence."""
    cost, sla = managed.cost or 0.0, managed.model.sla
    if law != LATE_SHARE:
        return cost / sla.set_point
    period = managed.quota_period
    promise = Promise(sla.response_time, sla.budget or 1.0, period, period * (1 + managed.burst))
    return bucket_need(0.0, cost, promise)


def _on_gpus(config: Config) -> set[str]:
    """Return the models that a GPU serves: they keep no cores for a rare request."""
    found = (e.spec for e in executables(config))
    return {model for spec in found if spec.device is Device.GPU for model in spec.models}


def controlled(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of a worker whose cores can be set."""
    return [e for e in on_worker(config, worker) if e.controlled]

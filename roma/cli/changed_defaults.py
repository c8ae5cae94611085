"""Notes of `config check` on defaults that changed since 0.1.0 and change what a file means.

To be deleted with the next release: CHANGELOG.md has them for good.
"""

from collections.abc import Collection, Iterator

from roma.config import placement
from roma.config.control import DEFAULT_MINIMUM, LATE_SHARE, LEAST_MINIMUM
from roma.config.schema import Config
from roma.domain.model import Device
from supervisor.assembly import build_core


def notes(config: Config) -> Iterator[str]:
    """Yield one line for each default whose new value has an effect on this file."""
    silent = [
        name
        for name, model in config.models.items()
        if not {"budget", "statistic"} & model.sla.model_fields_set
    ]
    if silent:
        yield (
            f"sla.budget of {', '.join(silent)}: 98 % of the requests are promised in time; "
            "it was their mean (statistic: mean)"
        )
    shed = [spec.name for spec in config.model_specs if spec.sla.sheds_late_requests]
    if shed:
        yield (
            f"admission of {', '.join(shed)}: what cannot be answered within response_time is "
            "refused; it was within deadline"
        )
    cores = {w.name: build_core(config, w) for w in config.workers}
    idle = [(core, status.managed) for core in cores.values() for status in core.status.values()]
    raised = {
        managed.name: needed
        for core, managed in idle
        if managed.idles_by_cost and (needed := core.idle_minimum(managed.name)) > DEFAULT_MINIMUM
    }
    if raised:
        named = ", ".join(f"{name} {cores:.2f}" for name, cores in raised.items())
        yield f"cpu.min, idle: {named}; it was {DEFAULT_MINIMUM:g}"
    control = config.control.model_fields_set
    free = [m.name for _, m in idle if config.models[m.model.name].cpu.min is None]
    if free and config.control.law == LATE_SHARE:
        yield (
            f"cpu.min, idle, of {', '.join(free)}: {LEAST_MINIMUM:g} or what one request in time "
            f"needs; it was {DEFAULT_MINIMUM:g}"
        )
    if idle:
        yield from _control(config, [name for name, core in cores.items() if core.status])
    yield from _scheduling(config)
    if idle and "cfs_burst" not in control:
        yield "control.cfs_burst: a quota period inherits up to a whole quota; it was none"
    shared = [name for name, core in cores.items() if len(core.status) > 1]
    if shared and "sharing" not in control:
        yield (
            f"control.sharing on {', '.join(shared)}: max_min in a shortage; it was proportional"
        )


def _control(config: Config, workers: Collection[str]) -> Iterator[str]:
    """Yield notes on the law and on the periods of the workers that control cores."""
    control = config.control.model_fields_set
    if "law" not in control:
        yield "control.law: late_share, which holds the share of late requests; adaptive is gone"
    if "period" not in control:
        periods = {
            w.name: config.period(w)
            for w in config.workers
            if w.name in workers and w.period is None and config.period(w) != 1
        }
        if periods:
            named = ", ".join(f"{name} {seconds:g} s" for name, seconds in periods.items())
            yield f"control.period: {named}; it was 1 s"


def _scheduling(config: Config) -> Iterator[str]:
    """Yield a note on the policies, where there is a GPU or a choice among workers."""
    has_gpus = any(e.spec.device is Device.GPU for e in placement.executables(config))
    if config.scheduling.is_planned or (not has_gpus and len(config.workers) == 1):
        return
    scheduling = config.scheduling
    olds = (
        {"gpu": "roma", "cpu": "round_robin", "spill": "0"} if has_gpus else {"cpu": "round_robin"}
    )
    changed = [
        f"{key} {getattr(scheduling, key)} (it was {old})"
        for key, old in olds.items()
        if key not in scheduling.model_fields_set
    ]
    if changed:
        yield f"scheduling: {', '.join(changed)}"

"""Notes of `config check` on defaults that changed since 0.1.0 and change what a file means.

To be deleted with the next release: CHANGELOG.md has them for good.
"""

from collections.abc import Iterator

from roma.config import DEFAULT_MINIMUM, Config
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
    if idle and "cfs_burst" not in config.control.model_fields_set:
        yield "control.cfs_burst: a quota period inherits up to a whole quota; it was none"
    shared = [name for name, core in cores.items() if len(core.status) > 1]
    if shared and "sharing" not in config.control.model_fields_set:
        yield (
            f"control.sharing on {', '.join(shared)}: max_min in a shortage; it was proportional"
        )

"""Bursts of containers, written to cgroup files: the engine's API does not cover them."""

import logging
from collections.abc import Callable

from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.domain.errors import ActuationError, ActuationNotPermitted
from supervisor.cgroups import Group, Hierarchy, container_group, container_hierarchy

log = logging.getLogger(__name__)


class Bursts:
    """Changes the burst of a container before and after the engine changes its quota.

    Where their files are not accessible (an engine on another host, a read-only mount) quotas are
    set without burst.
    """

    def __init__(self, config: Config, worker: WorkerConfig) -> None:
        self._control = config.control
        self._hierarchy = _hierarchy(worker)
        if self._hierarchy is None and config.control.cfs_burst:
            log.warning("worker %s: no cgroup files here: quotas have no burst", worker.name)
        self._groups: dict[str, Group | None] = {}
        self._failed = False

    def lower(self, container: str, quota: int) -> None:
        """Lower the burst to what a quota of `quota` µs allows; call it before setting the quota.

        If that fails, the engine reports whether the kernel still accepts the quota.
        """
        self._move(container, lambda group: group.lower_burst(quota))

    def restore(self, container: str, quota: int) -> None:
        """Raise the burst to its share of a quota of `quota` µs, which has been set."""
        self._move(container, lambda group: group.raise_burst(quota))

    def _move(self, container: str, move: Callable[[Group], None]) -> None:
        group = self._group(container)
        if group is None:
            return
        try:
            move(group)
        except ActuationError as error:
            if not self._failed:  # once, not once per container and second
                log.warning("quotas are set, bursts are not: %s", error)
            self._failed = True

    def _group(self, container: str) -> Group | None:
        """Return a container's group, None while it does not run."""
        if self._hierarchy is None:
            return None
        group = self._groups.get(container)
        if group is None or not group.directories[0].exists():
            control = self._control
            group = self._groups[container] = container_group(
                self._hierarchy, container, control.cfs_period, control.cfs_burst
            )
        return group


def _hierarchy(worker: WorkerConfig) -> Hierarchy | None:
    """Return the hierarchy of the containers' groups; None if it is not on this host."""
    if worker.containers.remote:
        return None
    try:
        found = container_hierarchy(worker.containers.cgroup_root)
    except ActuationNotPermitted:
        return None
    return found if all(root.is_dir() for root in found.roots) else None

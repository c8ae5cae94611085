"""Bursts of containers: the engine's API has none, so they are written beside it."""

import contextlib
import logging

from roma.config import Config
from roma.errors import ActuationError, ActuationNotPermitted
from roma.workers import WorkerConfig
from supervisor.cgroups import Group, Hierarchy, container_group, container_hierarchy

log = logging.getLogger(__name__)


class Bursts:
    """Moves the burst of a container before and after the engine moves its quota.

    Where their files are not to be had (an engine on another host, a read-only mount) quotas are
    set without.
    """

    def __init__(self, config: Config, worker: WorkerConfig) -> None:
        self._control = config.control
        self._hierarchy = _hierarchy(worker)
        self._groups: dict[str, Group] = {}
        self._failed = False

    def lower(self, container: str, quota: int) -> None:
        """Before a quota of so many microseconds: the kernel refuses it below the burst.

        Raises ActuationError if that is not possible.
        """
        group = self._group(container)
        if group is not None:
            group.lower_burst(quota)

    def restore(self, container: str, quota: int) -> None:
        """After a quota of so many microseconds; it stands whatever becomes of the burst."""
        group = self._group(container)
        if group is None:
            return
        try:
            group.raise_burst(quota)
        except ActuationError as error:
            if not self._failed:  # once, not once per container and second
                log.warning("quotas are set without burst: %s", error)
            self._failed = True

    def _group(self, container: str) -> Group | None:
        """Return a container's group, None while it does not run."""
        if self._hierarchy is None:
            return None
        group = self._groups.get(container)
        if group is None or not group.directories[0].exists():
            control = self._control
            group = container_group(
                self._hierarchy, container, control.cfs_period, control.cfs_burst
            )
            self._groups.pop(container, None)
            if group is not None:
                self._groups[container] = group
        return group


def _hierarchy(worker: WorkerConfig) -> Hierarchy | None:
    if not worker.containers.remote:
        with contextlib.suppress(ActuationNotPermitted):
            return container_hierarchy(worker.containers.cgroup_root)
    log.warning("worker %s: no cgroup files here: quotas are set without burst", worker.name)
    return None

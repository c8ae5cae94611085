"""Pods and nodes as executables and workers of roma.yaml's form."""

import math
from typing import Final

from roma.config.workers import ExecutableConfig, WorkerConfig

_LONGEST: Final = 63
"""Most characters of a name of ours; a pod's random part is at its end."""


class PodExecutable(ExecutableConfig):
    """A pod, listed as the executables of a static worker are.

    `least` and `most` are the lowest and the highest limit in cores that the API server accepts.
    """

    least: float = 0.0
    most: float = math.inf


class NodeWorker(WorkerConfig):
    """A node that matches the labels of the entry `pool` of roma.yaml."""

    pool: str

    @property
    def entry(self) -> str:
        """Name of that entry."""
        return self.pool


def own_name(name: str) -> str:
    """Return a name of ours for a pod's or a node's, which may be longer than ours can be."""
    return name[-_LONGEST:].lstrip("-.")

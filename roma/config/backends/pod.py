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


def executable_name(pod: str) -> str:
    """Return the executable's name for a pod's, which may be longer than a name can be."""
    return pod[-_LONGEST:].lstrip("-.")


def worker_name(node: str) -> str:
    """Return the worker's name for a node's, likewise."""
    return node[-_LONGEST:].lstrip("-.")

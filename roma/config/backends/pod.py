"""A pod as an executable of roma.yaml's form."""

from typing import Final

from roma.config.workers import ExecutableConfig

_LONGEST: Final = 63
"""Most characters of an executable's name; a pod's random part is at its end."""


class PodExecutable(ExecutableConfig):
    """A pod, listed as the executables of a static worker are.

    `least` is the lowest limit in cores that the API server accepts.
    """

    least: float = 0.0


def executable_name(pod: str) -> str:
    """Return the executable's name for a pod's, which may be longer than a name can be."""
    return pod[-_LONGEST:].lstrip("-.")

"""Executables that a configuration asks for, with their addresses.

A pure function of the file and of what sources listed, so that launcher, dispatcher and supervisor
agree without communicating: each of them can be restarted alone.
"""

from roma.config.backends import registry as backends
from roma.config.executable import Executable
from roma.config.schema import Config
from roma.config.workers import WorkerConfig


def executables(config: Config) -> list[Executable]:
    """Return every executable of the deployment, in a fixed order."""
    return [e for worker in config.workers for e in on_worker(config, worker)]


def on_worker(config: Config, worker: WorkerConfig) -> list[Executable]:
    """Return the executables of one worker."""
    return backends.of(worker).executables(config, worker)

"""Launchers of the model servers that are not processes of this machine, by kind of backend."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

from roma.config.schema import Config
from roma.config.workers import BackendKind, WorkerConfig
from roma.deploy.child import Child
from roma.deploy.containers import containers


class Launched(Protocol):
    """The model servers of one worker, which run until the launcher's block ends."""

    broker: Child | None
    """A program of this machine that they depend on."""

    async def follow(self, config: Config) -> None:
        """Apply another configuration; a retry completes the rest. Raises ActuationError."""


Launcher = Callable[
    [Config, WorkerConfig, Path, Path | None], AbstractAsyncContextManager[Launched]
]
"""Runs the model servers of a worker of this roma.yaml, with logs in a directory if there is one;
raises LaunchError."""

LAUNCHERS: Final[dict[BackendKind, Launcher]] = {BackendKind.DOCKER: containers}

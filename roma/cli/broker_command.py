"""`roma broker`: the program that holds a worker's Docker socket."""

import asyncio
from typing import Annotated

import typer

from roma.cli.loading import program
from roma.cli.options import ConfigFile
from roma.config.workers import BackendKind
from roma.domain.errors import ConfigError
from supervisor.broker import server


def command(
    file: ConfigFile,
    worker: Annotated[str | None, typer.Option(help="Name of the worker to serve.")] = None,
    launcher: Annotated[
        bool, typer.Option(help="Let containers be made and removed, on a socket of its own.")
    ] = True,
) -> None:
    """Hold a worker's Docker socket: containers and quotas for others, within FILE's bounds."""
    loaded = program(file)
    chosen = loaded.worker(worker)
    if chosen.backend is not BackendKind.DOCKER:
        raise ConfigError(f"workers.{chosen.name}.backend = {chosen.backend}: must be docker")
    asyncio.run(server.run(loaded, chosen, file, launcher=launcher))

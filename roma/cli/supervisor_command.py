"""`roma supervisor`: the control loop of a worker, or of all nodes of a cluster, as a program."""

import asyncio
from typing import Annotated

import typer

from roma.cli.loading import program
from roma.cli.options import ConfigFile, Insecure
from supervisor.live import app


def command(
    file: ConfigFile,
    worker: Annotated[str | None, typer.Option(help="Name of the worker to control.")] = None,
    insecure: Insecure = False,
) -> None:
    """Run a supervisor: controllers, sharing and actuation of one worker.

    Without --worker it controls all workers of backend kubernetes, or the file's only worker.
    """
    loaded = program(file)
    chosen = () if worker is not None else loaded.discovered
    chosen = chosen or (loaded.worker(worker),)
    asyncio.run(app.run(loaded, chosen, file, insecure=insecure))

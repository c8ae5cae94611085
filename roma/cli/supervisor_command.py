"""`roma supervisor`: one worker's control loop as a program."""

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
    """Run one worker's supervisor: controllers, sharing and actuation."""
    loaded = program(file)
    chosen = loaded.worker(worker)
    asyncio.run(app.run(loaded, chosen, file, insecure=insecure))

"""`roma dispatcher`: gateway, queues and schedulers as a program."""

import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from dispatcher.live import app
from roma.cli.loading import program
from roma.cli.options import ConfigFile, Insecure
from roma.domain.errors import ConfigError


def command(
    file: ConfigFile,
    insecure: Insecure = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Share the clients' port with other dispatchers of this machine (SO_REUSEPORT).",
        ),
    ] = False,
    admin_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Instead of gateway.admin_port: one each, if shared."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Which of gateway.processes it is: shared, with that admin port."),
    ] = None,
    faults_file: Annotated[
        Path | None,
        typer.Option("--faults", help="JSON file of a launcher: by executable, why it cannot run."),
    ] = None,
) -> None:
    """Run one dispatcher: gateway, queues and schedulers. SIGHUP: models that came or went."""
    loaded = program(file)
    # gRPC's core writes lines of its own about what clients send, before they are known.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if number is not None:
        ports = loaded.gateway.admin_ports
        if number > len(ports):
            raise ConfigError(f"number = {number}: must be ≤ gateway.processes ({len(ports)})")
        shared, admin_port = True, admin_port or ports[number - 1]
    running = app.run(
        loaded,
        file,
        insecure=insecure,
        shared=shared,
        admin_port=admin_port,
        faults_file=faults_file,
    )
    uvloop.run(running)

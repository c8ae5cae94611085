"""`roma up`: a whole deployment on this machine."""

import asyncio

from roma.cli.loading import program
from roma.cli.options import ConfigFile, Insecure
from roma.deploy.up import run


def command(file: ConfigFile, insecure: Insecure = False) -> None:
    """Start executables, dispatcher and supervisors; stop them all on Ctrl-C."""
    asyncio.run(run(program(file), file, insecure=insecure))

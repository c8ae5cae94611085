"""The commands of `roma`: a table of modules, each imported when its command runs.

Exit status: 0 done, 1 failed, 2 the configuration or the machine is wrong, 128 + N: signal N ended
it.
"""

import contextlib
import sys
from importlib import metadata
from typing import Annotated

import typer

from roma.cli import console, interrupts
from roma.cli.lazy_group import LazyGroup
from roma.config import start_failures
from roma.domain.errors import ConfigError, DecisionLogError, LaunchError, RomaError
from roma.telemetry import logs

COMMANDS = {
    "init": "Write a first roma.yaml for one model, after measuring what a request costs.",
    "up": "Start executables, dispatcher and supervisors; stop them all on Ctrl-C.",
    "status": "Show every model now: its promise, its load, its cores and why; worst first.",
    "top": "Show the same as `roma status` once a second, until Ctrl-C.",
    "explain": "Say why MODEL got the cores it got, and which requests were refused.",
    "models": "Add, remove and scale models; a deployment that runs follows.",
    "config": "Check a roma.yaml, or print its schema.",
    "keys": "Keys of those who may call, and the secrets of the admin port.",
    "render": "Write a deployment for other tools.",
    "demo": "Keep two real TensorFlow models under their SLAs on this machine.",
    "load": "Send open-loop load to one model and report response times.",
    "profile": "Measure on this machine what a request of each model of FILE costs.",
    "simulate": "Answer in virtual time what FILE would need: cores, late requests.",
    "report": "Write one page on RUN: promises, cores, what went wrong when, and why.",
    "experiment": "Rerun the evaluation: the paper's tables, laws compared, robustness, ablation.",
    "design": "Design a control law: plant, identification, tuning, robustness, pictures.",
    "qos": "Policies that choose batch size and variant.",
    "dispatcher": "Run one dispatcher: gateway, queues and schedulers.",
    "supervisor": "Run one worker's supervisor: controllers, sharing and actuation.",
    "broker": "Hold a worker's Docker socket: containers and quotas for others.",
    "serve-model": "Serve SavedModels: TensorFlow Serving's APIs, Open Inference Protocol.",
    "device": "Run a planned device: it executes what one dispatcher tells it, when it tells it.",
    "predictability": "Measure how predictable a model is alone on a device, and in company.",
}
"""By name, what `roma --help` says; the command is `command` in roma/cli/NAME_command.py."""


class Commands(LazyGroup):
    """The table as a group."""

    commands_by_name = COMMANDS
    renamed = {"worker": "device"}  # noqa: RUF012 - declared by the base class


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roma {metadata.version('roma-control-plane')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps the response-time promises of models that share a host, with few CPU cores."""


def main() -> None:
    """Run the command line; errors that people can fix are one line each, without a traceback."""
    out = console.prepare()
    logs.apply()
    try:
        with interrupts.ending():
            app()
    except RomaError as error:
        # What it quotes may come from far; a terminal must not obey it.
        print(*map(logs.escaped, str(error).split("\n")), sep="\n", file=sys.stderr)
        start_failures.leave(error)
        sys.exit(2 if isinstance(error, ConfigError | DecisionLogError | LaunchError) else 1)
    except OSError:
        if out.fault is None:
            raise
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if out.fault is not None:
            if not isinstance(out.fault, BrokenPipeError):  # a reader that has read enough
                print(f"standard output: cannot be written: {out.fault.strerror}", file=sys.stderr)
            out.discard()
            sys.exit(1)

"""`roma profile`: options to a plan, a line per point on the way, a file and a table at the end."""

import asyncio
import datetime
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from roma.cli.options import ConfigFile
from roma.config import schema as roma_config
from roma.config import yaml_file
from roma.config.profile import MachineProfile, ModelProfile, Profiles
from roma.config.schema import Config
from roma.config.watched_file import home
from roma.domain.errors import ConfigError
from roma.tools.profiling import inputs, machine, measure, plan, report
from roma.tools.profiling.inputs import Inputs

log = logging.getLogger(__name__)

DEFAULT_NAME = "profile.yaml"


def command(
    file: ConfigFile,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; repeatable. Default: all of them.")
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            help="Quotas to measure under, e.g. 0.25,0.5,1. Default: these and the model's most."
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Inputs per request; 1 is always measured.")
    ] = "1,2,4,8",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Least seconds per pair of cores and batch.")
    ] = 3.0,
    body: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL=FILE with one JSON body, or a .jsonl file with one per line; repeatable. "
            "Default: the model's warm-up body, or numbers in the shape of its signature."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default: what FILE names as `profile`, or profile.yaml beside it."
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure on this machine what a request of each model of FILE costs; write a profile."""
    config = _config(file)
    out = out or config.profile or file.with_name(DEFAULT_NAME)
    report.check_writable(out, file)
    available = machine.available_cores()
    todo = plan.make(
        config,
        machine=available,
        only=model or (),
        cores=None if cores is None else plan.numbers("--cores", cores),
    )
    settings = measure.Settings(
        batches=plan.batches(batch),
        seconds=seconds,
        bodies=_bodies(body or (), [target.model for target in todo.targets]),
        cores=available,
    )
    for line in todo.skipped:
        log.warning(line)
    profiles = Profiles(
        machine=MachineProfile(
            cpu=machine.cpu_name(),
            cores=available,
            measured=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ),
        models=asyncio.run(_measure(config, todo, settings)),
    )
    report.write(profiles, out, shlex.join(["roma", *sys.argv[1:]]))
    log.info("written: %s", out)
    if json_output:
        print(json.dumps(report.plain(profiles), indent=2))
    else:
        Console().print(*report.tables(profiles))


async def _measure(
    config: Config, todo: plan.ProfilingPlan, settings: measure.Settings
) -> dict[str, ModelProfile]:
    # One after the other: two at once would measure each other.
    return {
        target.model: await measure.measure(config, target, settings) for target in todo.targets
    }


def _config(file: Path) -> Config:
    """Read a roma.yaml without the profile that it names: this command may be about to write it."""
    config = roma_config.parse(yaml_file.text_of(file), source=str(file))
    return config.relative_to(home(file))


def _bodies(texts: Sequence[str], models: Sequence[str]) -> dict[str, Inputs]:
    found = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not (name and file):
            raise ConfigError(f"--body = {text}: must be MODEL=FILE")
        if name not in models:
            raise ConfigError(f"--body = {text}: model must be one of {', '.join(models)}")
        found[name] = inputs.from_file(Path(file), f"--body = {text}")
    return found

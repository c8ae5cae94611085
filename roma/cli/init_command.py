"""`roma init`: a first roma.yaml, for one model whose cost is measured."""

import asyncio
import contextlib
import math
import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from roma.config import file_edit, schema, yaml_file
from roma.config.profile import ModelProfile
from roma.deploy.model_paths import unservable
from roma.domain.errors import ConfigError
from roma.tools.demo.ports import free_ports
from roma.tools.profiling import inputs, machine, measure, plan

RESERVED = 0.3
"""Share of the machine's cores that the gateway and everything else keep, as in the demo."""

EASE = 5.0
"""Default promise in response times of one request alone: docs/lab.md, `ladder`, has what defaults
keep at which multiple."""

SHORTEST = 0.05
"""Seconds: the least default promise, half a quota period. Write a shorter one if you need it."""

TEMPLATE = """\
# By `roma init`: one request of {name} takes {alone:.3g} s on {cores:g} cores when it is alone.
models:
  {name}:
    path: {path}
    sla: {{response_time: {promise:g}}}  # s; 98 of 100 requests are promised within it
    profile: {{cost: {cost:.4g}}}  # core-seconds per request, measured here
workers:
  - name: local
    cores: {cores:g}
    reserved: {reserved:g}  # for the gateway and everything else
gateway:
  port: {port}  # POST http://127.0.0.1:{port}/v1/models/{model}:predict
"""


def command(
    model: Annotated[
        Path, typer.Argument(help="A SavedModel's directory with numbered versions.", metavar="DIR")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model. Default: that of DIR.")
    ] = None,
    response_time: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=3600, help="The promise in s. Default: 5 requests' time, 0.05 at least."
        ),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option(help="A JSON body to measure with. Default: as `roma profile` finds one."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Least seconds to measure.")
    ] = 2.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port.")] = 8501,
    out: Annotated[Path, typer.Option(help="File to write; an existing one is kept.")] = Path(
        "roma.yaml"
    ),
) -> None:
    """Write a roma.yaml for the model in DIR, after measuring what one request of it costs."""
    at = Path(os.path.realpath(model))
    name = name or re.sub(r"[^A-Za-z0-9._-]", "-", at.name)
    if any("\ud800" <= c <= "\udfff" for c in str(model)):
        raise ConfigError(f"DIR = {str(model)!a}: must be UTF-8, as roma.yaml is")
    folder = _folder(out)
    cores = machine.available_cores()
    reserved = round(RESERVED * cores, 1)
    draft = _draft(name, at, cores, reserved, response_time or 1.0, port)
    given = {} if body is None else {name: inputs.from_file(body, f"--body = {body}")}
    found = asyncio.run(_measured(draft, cores, given, seconds))
    alone = found.points[0].response_time
    text = TEMPLATE.format(
        name=_scalar(name),
        # A relative path counts from the file that it stands in.
        path=_scalar(str(model if folder == Path.cwd() else model.absolute())),
        cost=found.cost,
        alone=alone,
        promise=response_time or max(SHORTEST, _rounded_up(EASE * alone)),
        cores=cores,
        reserved=reserved,
        port=port,
        model=name,
    )
    print(text, end="", flush=True)
    _folder(out)  # measuring took its time: another file may be there by now
    with file_edit.writing(f"out = {out}"):
        file_edit.output(out, text)
    typed = shlex.quote(str(out))
    told = f"check it with `roma config check {typed}`, start it with `roma up {typed}`"
    print(f"\nwrote {out}: {told}")


def _folder(out: Path) -> Path:
    """Return the directory of a file to write; raise ConfigError if it cannot be written."""
    if out.exists():
        raise ConfigError(f"out = {out}: exists already: name another one")
    file = Path(os.path.realpath(out))
    fault = ""
    if file.is_symlink():
        fault = "its links form a circle"
    elif not file.parent.is_dir():
        fault = f"{file.parent} is no directory"
    elif not os.access(file.parent, os.W_OK):
        fault = f"{file.parent} is read-only for this user"
    if fault:
        raise ConfigError(f"out = {out}: cannot be written: {fault}")
    return file.parent


def _scalar(text: str) -> str:
    """Return a text as it is, or in quotes if YAML would read it as something else."""
    if re.fullmatch(r"[A-Za-z0-9._/-]+", text):
        with contextlib.suppress(ConfigError):  # no date has a month 13, say
            if yaml_file.read(text, source="") == text:
                return text
    return yaml_file.quoted(text)


def _draft(
    name: str, model: Path, cores: float, reserved: float, promise: float, port: int
) -> schema.Config:
    """Return the configuration to measure under; raise ConfigError if the model has no version."""
    # Beside deployments that run here: their ports and their cgroups are not touched.
    (own,) = free_ports(1)
    config = schema.parse(
        f"name: roma-init-{os.getpid()}\n"
        f"models: {{{_scalar(name)}: {{path: {yaml_file.quoted(str(model))}, "
        f"sla: {{response_time: {promise}}}}}}}\n"
        f"workers: [{{cores: {cores}, reserved: {reserved}, base_port: {own}}}]\n"
        f"gateway: {{port: {port}}}\n",
        source="roma init",
    )
    for fault in unservable(config).values():
        raise ConfigError(fault)
    return config


async def _measured(
    config: schema.Config, cores: float, given: dict[str, inputs.Inputs], seconds: float
) -> ModelProfile:
    todo = plan.make(config, machine=cores, only=(), cores=(cores,))
    settings = measure.Settings(batches=(1,), seconds=seconds, bodies=given, cores=cores)
    (target,) = todo.targets
    return await measure.measure(config, target, settings)


def _rounded_up(value: float) -> float:
    """Return the next value of two digits, at least a millisecond."""
    value = max(value, 0.001)
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / step - 1e-9) * step, 6)

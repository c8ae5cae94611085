"""`roma device`: one planned device, which executes what one dispatcher tells it."""

import re
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from roma.cli.options import Insecure, choice
from roma.device import registry
from roma.device.program import DeviceSettings, check_exposure, run
from roma.device.registry import RuntimeKind
from roma.device.server import DeviceServerSettings, check_address
from roma.domain.actions import BATCHES, MOST_BATCH, PAGE
from roma.domain.errors import ConfigError
from roma.security import tokens
from roma.telemetry import logs

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BATCH = re.compile(r"[0-9]{1,3}")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i)?B")


def command(
    runtime: Annotated[
        str, typer.Option(help="What executes the models: tensorflow, torch or emulated.")
    ] = "tensorflow",
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: a SavedModel, or a .pt or .pt2 file; repeatable."),
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Directory of models, each called by its own name.")
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(help="Models of a device that is not there, e.g. resnet50:15,resnet18:3."),
    ] = None,
    emulate_tensors: Annotated[
        bool,
        typer.Option(
            "--emulate-tensors", help="With tensors of the models' sizes, not one number each."
        ),
    ] = False,
    device_: Annotated[
        str, typer.Option("--device", help="cpu, or cuda:N for the torch runtime.")
    ] = "cpu",
    pages: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**9, help="Pages of 16 MiB for weights. Default: what the device has."
        ),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="The same in bytes, e.g. 2GiB.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    profile_runs: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs per model and batch size at start.")
    ] = 5,
    batches: Annotated[
        str | None,
        typer.Option(help="Batch sizes to profile and execute. Default: 1,2,4,8,16."),
    ] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8700,
    name: Annotated[
        str | None, typer.Option(help="What dispatchers call it. Default: this machine's name.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that a dispatcher must show.")
    ] = None,
    insecure: Insecure = False,
    log_format: Annotated[str, typer.Option(help="console or json.")] = "console",
) -> None:
    """Run a planned device: it executes what one dispatcher tells it, when it tells it."""
    kind = choice("runtime", runtime, RuntimeKind)
    logs.apply(checked_format(log_format))
    called = name or socket.gethostname()
    settings = DeviceSettings(
        DeviceServerSettings(called, host, port, tokens.watched(token_file)),
        _pages(pages, memory),
        profile_runs,
        batch_sizes(batches),
        insecure,
    )
    # What is wrong with the command line is told before the models take their seconds.
    check_exposure(settings)
    uvloop.run(check_address(settings.server))
    if emulate is not None:
        if model or models is not None:
            given = f"model = {model[0]}" if model else f"models = {models}"
            raise ConfigError(f"{given}: must be absent where the device is emulated")
        if batches is not None:
            raise ConfigError("emulate, batches: an emulated device has the table's batches alone")
        made = registry.emulated(emulate, full=emulate_tensors)
    elif kind is RuntimeKind.EMULATED:
        raise ConfigError("runtime = emulated: must come with --emulate, resnet50:15 say")
    else:
        paths = registry.models(model or (), models, kind)
        made = registry.make(kind, paths, device_, threads, settings.batches)
    uvloop.run(run(made, settings))


def memory_bytes(text: str) -> int:
    """Return the bytes that `2GiB` means; raises ConfigError."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise ConfigError(f"memory = {text}: must be a number with B, KiB, MiB, GiB or TiB")
    try:
        return int(float(found[1]) * _UNITS[f"{found[2] or ''}B"])
    except OverflowError:
        raise ConfigError(f"memory = {text:.20}…: must be at most what a device has") from None


def batch_sizes(text: str | None) -> tuple[int, ...]:
    """Return the batch sizes that `1,2,4` means, smallest first; raises ConfigError."""
    if text is None:
        return BATCHES
    parts = [part.strip() for part in text.split(",")]
    found = {int(part) for part in parts if _BATCH.fullmatch(part)} & set(range(1, MOST_BATCH + 1))
    if len(found) < len(parts) or 1 not in found:
        bound = f"different whole numbers from 1 to {MOST_BATCH}, 1 among them: 1,2,4,8 say"
        raise ConfigError(f"batches = {text}: must be {bound}")
    return tuple(sorted(found))


def checked_format(text: str) -> logs.Format:
    """Return a form of log lines by its name; raises ConfigError."""
    match text:
        case "console" | "json":
            return text
    raise ConfigError(f"log_format = {text}: must be console or json")


def _pages(pages: int | None, memory: str | None) -> int | None:
    if memory is None:
        return pages
    if pages is not None:
        raise ConfigError("pages, memory: only one of them can be set")
    if not (fitting := memory_bytes(memory) // PAGE):
        raise ConfigError(f"memory = {memory}: must be ≥ 16MiB, a page")
    return fitting

"""`roma predictability`: one model alone on a device, and in company."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from roma.cli.console import wide_console
from roma.cli.options import choice
from roma.device import predictability, registry
from roma.device.registry import RuntimeKind
from roma.domain.actions import BATCHES
from roma.domain.errors import ConfigError

MAX_THREADS = 64


def command(
    runtime: Annotated[
        str, typer.Option(help="What executes the model: tensorflow, torch or emulated.")
    ] = "tensorflow",
    model: Annotated[
        str | None, typer.Option(help="NAME=PATH. Default: a small dense network, made anew.")
    ] = None,
    emulate: Annotated[
        str | None, typer.Option(help="A model of the emulated device, e.g. resnet50:1.")
    ] = None,
    device_: Annotated[
        str, typer.Option("--device", help="cpu, or cuda:N for the torch runtime.")
    ] = "cpu",
    batch: Annotated[int, typer.Option(help="Examples per execution.")] = 1,
    runs: Annotated[int, typer.Option(min=1, max=10_000_000, help="Executions per row.")] = 2000,
    threads: Annotated[
        str, typer.Option(help="How many execute at once: one row each, e.g. 1,2,4.")
    ] = "1,2,4",
    intra_op: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Measure how predictable a model is alone on a device, and how much less so in company."""
    kind, counts = choice("runtime", runtime, RuntimeKind), _threads(threads)
    if batch not in BATCHES:
        raise ConfigError(f"batch = {batch}: must be one of {', '.join(map(str, BATCHES))}")
    with tempfile.TemporaryDirectory() as folder:
        if kind is RuntimeKind.EMULATED or emulate is not None:
            if model is not None:
                raise ConfigError(f"model = {model}: must be absent where the device is emulated")
            if device_ != "cpu":
                raise ConfigError(f"device = {device_}: must be absent where it is emulated")
            device_ = "emulated"
            made = registry.emulated(emulate or "resnet50:1", full=False)
        else:
            paths = (
                registry.save_sample(kind, Path(folder))
                if model is None
                else registry.models([model], None, kind)
            )
            made = registry.make(kind, paths, device_, intra_op)
        name = next(iter(made.models))
        try:
            rows = predictability.run(made, name, batch=batch, runs=runs, threads=counts)
        finally:
            made.close()
    if json_output:
        print(json.dumps({"model": name, "rows": predictability.to_json(rows)}, indent=2))
    else:
        wide_console().print(_table(f"{name}, batch {batch}, {device_}", rows))


def _threads(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and 1 <= int(p) <= MAX_THREADS for p in parts):
        raise ConfigError(f"threads = {text}: must be numbers from 1 to {MAX_THREADS}, like 1,2,4")
    return [int(part) for part in parts]


def _table(measured: str, rows: Sequence[predictability.LatencyRow]) -> Table:
    told = [p for p in predictability.PERCENTILES if p != 50.0]
    names = ["max" if p == 100.0 else f"p{p:g}" for p in told]
    table = Table(title=f"{measured}: latency, relative to its median")
    for name in ("threads", "runs", "batches/s", "throughput", "median ms", *names):
        table.add_column(name, justify="right")
    first = rows[0]
    for row in rows:
        table.add_row(
            str(row.threads),
            str(row.runs),
            f"{row.throughput:.1f}",
            f"{row.throughput / first.throughput - 1:+.1%}",
            f"{row.median * 1e3:.3f}",
            *(f"{row.excess(p):+.2%}" for p in told),
        )
    return table

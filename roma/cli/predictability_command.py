"""`roma predictability`: one model alone on a device, and in company."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from roma.cli.console import wide_console
from roma.cli.device_command import runtime_kind
from roma.device import predictability, registry
from roma.device.registry import RuntimeKind
from roma.device.runtimes.base import Runtime
from roma.domain.actions import BATCHES
from roma.domain.errors import ConfigError

MAX_THREADS = 64


@dataclass(frozen=True, slots=True)
class PredictabilityOptions:
    """The command line, before it is checked."""

    runtime: RuntimeKind
    model: str | None
    emulate: str | None
    device: str
    batch: int
    runs: int
    threads: str
    inside: int
    json_output: bool


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
    run(
        PredictabilityOptions(
            runtime=runtime_kind(runtime),
            model=model,
            emulate=emulate,
            device=device_,
            batch=batch,
            runs=runs,
            threads=threads,
            inside=intra_op,
            json_output=json_output,
        )
    )


def run(options: PredictabilityOptions) -> None:
    """Measure and print; raises ConfigError or LaunchError."""
    threads = _threads(options.threads)
    if options.batch not in BATCHES:
        raise ConfigError(f"batch = {options.batch}: must be one of {_listed(BATCHES)}")
    with tempfile.TemporaryDirectory() as folder:
        runtime = _runtime(options, Path(folder))
        model = next(iter(runtime.models))
        try:
            rows = predictability.run(
                runtime, model, batch=options.batch, runs=options.runs, threads=threads
            )
        finally:
            runtime.close()
    if options.json_output:
        print(json.dumps({"model": model, "rows": predictability.to_json(rows)}, indent=2))
    else:
        wide_console().print(_table(model, options, rows))


def _runtime(options: PredictabilityOptions, folder: Path) -> Runtime:
    if options.runtime is RuntimeKind.EMULATED or options.emulate is not None:
        return registry.emulated(options.emulate or "resnet50:1", full=False)
    paths = (
        registry.save_sample(options.runtime, folder)
        if options.model is None
        else registry.models([options.model], None, options.runtime)
    )
    return registry.make(options.runtime, paths, options.device, options.inside)


def _threads(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and 1 <= int(p) <= MAX_THREADS for p in parts):
        raise ConfigError(f"threads = {text}: must be numbers from 1 to {MAX_THREADS}, like 1,2,4")
    return [int(part) for part in parts]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _table(
    model: str, options: PredictabilityOptions, rows: Sequence[predictability.LatencyRow]
) -> Table:
    told = [p for p in predictability.PERCENTILES if p != 50.0]
    names = ["max" if p == 100.0 else f"p{p:g}" for p in told]
    where = f"{model}, batch {options.batch}, {options.device}"
    table = Table(title=f"{where}: latency, relative to its median")
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

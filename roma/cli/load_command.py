"""`roma load`: options to a plan, a progress bar while it runs, a report at the end."""

import asyncio
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from roma.security import tokens
from roma.tools import load
from roma.tools.load.outcomes import Progress as LoadProgress
from roma.workload.arrivals import Process, Profile, send_times
from roma.workload.trace import TraceKind, read_trace

K = TypeVar("K", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The command line; times in seconds."""

    model: str
    body: Path
    url: str
    profile: str | None
    step: float
    trace: Path | None
    trace_kind: str
    trace_column: str | None
    process: str
    seed: int
    sla: float | None
    timeout: float
    token_file: Path | None
    json_output: bool


def run(options: LoadOptions) -> None:
    """Send the load and print the report; Ctrl-C ends it early with what was seen."""
    stream = load.Stream(
        options.model, _arrivals(options), load.read_bodies(options.body), options.sla
    )
    report = asyncio.run(_run(options, stream))
    if options.json_output:
        print(report.to_json().decode())
    else:
        Console().print(report.table())
    sys.exit(0 if report.total.lost == 0 and report.total.answered else 1)


def _arrivals(options: LoadOptions) -> list[float]:
    if (options.profile is None) == (options.trace is None):
        raise load.LoadInputError("--profile and --trace: exactly one of them must be given")
    if options.trace is not None:
        kind = _choice("--trace-kind", options.trace_kind, TraceKind)
        return read_trace(options.trace, kind, column=options.trace_column, seed=options.seed)
    assert options.profile is not None
    process = _choice("--process", options.process, Process)
    profile = Profile.parse(options.profile, step=options.step)
    return send_times(profile, process, seed=options.seed)


def _choice(option: str, value: str, kind: type[K]) -> K:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise load.LoadInputError(f"{option} = {value}: must be one of {known}") from None


async def _run(options: LoadOptions, stream: load.Stream) -> load.LoadReport:
    bar = Progress(
        TextColumn(options.model),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[ends]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    authorization = None
    if options.token_file is not None:
        authorization = tokens.read(options.token_file).authorization
    task = bar.add_task("", total=len(stream.arrivals), ends="")

    def show(progress: LoadProgress) -> None:
        ends = f"{progress.answered} ok, {progress.rejected} rejected, {progress.failed} failed"
        bar.update(task, completed=progress.sent, ends=ends)

    def on_start(running: load.LoadRun) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, running.stop)

    with bar:
        return await load.run_load(
            [stream],
            options.url,
            timeout=options.timeout,
            authorization=authorization,
            on_progress=show,
            on_start=on_start,
        )

"""`roma load`: options to a plan, a progress bar while it runs, a report at the end."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from roma.cli.interrupts import INTERRUPTED
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


def command(
    model: Annotated[str, typer.Argument(help="The model to call.")],
    body: Annotated[
        Path, typer.Option(help="One JSON body, or a .jsonl file with one body per line.")
    ],
    url: str = "http://127.0.0.1:8501",
    profile: Annotated[
        str | None, typer.Option(help="Rates in req/s per step, e.g. 20-20-80-80-20.")
    ] = None,
    step: Annotated[float, typer.Option(help="Length of a step in seconds.")] = 35.0,
    trace: Annotated[Path | None, typer.Option(help="Replay a trace file instead.")] = None,
    trace_kind: Annotated[
        str, typer.Option(help="What the trace holds: counts (per second) or timestamps.")
    ] = "counts",
    trace_column: Annotated[
        str | None, typer.Option(help="Column of a CSV trace with a header row.")
    ] = None,
    process: Annotated[
        str, typer.Option(help="Within a step: poisson, paced or mmpp (two levels).")
    ] = "poisson",
    seed: Annotated[int, typer.Option(min=0)] = 1,
    sla: Annotated[float | None, typer.Option(help="Promised response time in seconds.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds before a request counts as failed.")] = 30,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a key, where the service asks for one.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Send open-loop load to one model and report response times."""
    run(
        LoadOptions(
            model=model,
            body=body,
            url=url,
            profile=profile,
            step=step,
            trace=trace,
            trace_kind=trace_kind,
            trace_column=trace_column,
            process=process,
            seed=seed,
            sla=sla,
            timeout=timeout,
            token_file=token_file,
            json_output=json_output,
        )
    )


def run(options: LoadOptions) -> None:
    """Send the load and print the report; end the process with its exit status.

    Ctrl-C ends the load early: what was seen is reported, and the status is that of the signal.
    """
    if not options.model:
        raise load.LoadInputError("model = : must not be empty")
    stream = load.Stream(
        options.model, _arrivals(options), load.read_bodies(options.body), options.sla
    )
    report, interrupted = asyncio.run(_run(options, stream))
    if options.json_output:
        print(report.to_json().decode())
    else:
        Console().print(report.table())
    if report.warning is not None:
        print(f"warning: {report.warning}", file=sys.stderr)
    if interrupted:
        sent = f"{report.total.sent} of {report.planned} requests were sent"
        print(f"interrupted: {sent}", file=sys.stderr)
        sys.exit(INTERRUPTED)
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
    times = send_times(profile, process, seed=options.seed)
    if not times:
        raise load.LoadInputError(
            f"--profile = {options.profile}: asks for 0 requests; must be at least 1"
        )
    return times


def _choice(option: str, value: str, kind: type[K]) -> K:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise load.LoadInputError(f"{option} = {value}: must be one of {known}") from None


async def _run(options: LoadOptions, stream: load.Stream) -> tuple[load.LoadReport, bool]:
    """Return the report, and whether Ctrl-C ended the load early."""
    interrupted = False
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
        stack.enter_context(bar)  # not before: what is refused has made no progress
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop, running)

    def stop(running: load.LoadRun) -> None:
        nonlocal interrupted
        interrupted = True
        running.stop()

    with contextlib.ExitStack() as stack:
        report = await load.run_load(
            [stream],
            options.url,
            timeout=options.timeout,
            authorization=authorization,
            on_progress=show,
            on_start=on_start,
        )
    return report, interrupted

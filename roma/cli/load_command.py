"""`roma load`: options to a plan, a progress bar while it runs, a report at the end."""

import asyncio
import contextlib
import signal
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from roma.cli.interrupts import INTERRUPTED
from roma.cli.options import choice
from roma.domain.errors import naming
from roma.security import tokens
from roma.security.tls import client_context
from roma.tools import load
from roma.tools.load.outcomes import Progress as LoadProgress
from roma.workload.arrivals import Process, Profile, send_times
from roma.workload.trace import TraceKind, read_trace


def command(
    model: Annotated[str, typer.Argument(help="The model to call.")],
    body: Annotated[
        Path, typer.Option(help="One JSON body, or a .jsonl file with one body per line.")
    ],
    url: str = "http://127.0.0.1:8501",
    profile: Annotated[
        str | None, typer.Option(help="Rates in req/s per step, e.g. 20-20-80-80-20.")
    ] = None,
    step: Annotated[
        float | None, typer.Option(help="Length of a step in seconds. Default: 35.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay a trace file instead.")] = None,
    trace_kind: Annotated[
        str | None,
        typer.Option(help="What the trace holds: counts (per second; default) or timestamps."),
    ] = None,
    trace_column: Annotated[
        str | None, typer.Option(help="Column of a CSV trace with a header row.")
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(help="Within a step: poisson (default), paced or mmpp (two levels)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    sla: Annotated[float | None, typer.Option(help="Promised response time in seconds.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds before a request counts as failed.")] = 30,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a key, where the service asks for one.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM with the authority of the service's certificate.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Send open-loop load to one model and report response times."""
    if not model:
        raise load.LoadInputError("model = : must not be empty")
    arrivals = _arrivals(profile, step, trace, trace_kind, trace_column, process, seed)
    stream = load.Stream(model, arrivals, load.read_bodies(body), sla)
    authorization = None if token_file is None else tokens.read(token_file).authorization
    tls = None if ca is None else client_context(ca, key="--ca")
    report, interrupted = asyncio.run(_run(stream, url, timeout, authorization, tls))
    if json_output:
        print(report.to_json().decode())
    else:
        Console().print(report.table())
    if report.warning is not None:
        print(f"warning: {report.warning}", file=sys.stderr)
    if interrupted:  # what was seen is reported, and the status is that of the signal
        sent = f"{report.total.sent} of {report.planned} requests were sent"
        print(f"interrupted: {sent}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    sys.exit(0 if report.total.lost == 0 and report.total.answered else 1)


def _arrivals(
    profile: str | None,
    step: float | None,
    trace: Path | None,
    trace_kind: str | None,
    trace_column: str | None,
    process: str | None,
    seed: int,
) -> list[float]:
    if (profile is None) == (trace is None):
        raise load.LoadInputError("--profile and --trace: exactly one of them must be given")
    if trace is not None:
        _refuse("--trace", {"--step": step, "--process": process})
        kind = choice("--trace-kind", trace_kind or TraceKind.COUNTS, TraceKind)
        return read_trace(trace, kind, column=trace_column, seed=seed)
    assert profile is not None
    _refuse("--profile", {"--trace-kind": trace_kind, "--trace-column": trace_column})
    within = choice("--process", process or Process.POISSON, Process)
    rates = Profile.parse(profile, step=35.0 if step is None else step)
    with naming(f"--profile = {profile}"):
        times = send_times(rates, within, seed=seed)
    if not times:
        raise load.LoadInputError(f"--profile = {profile}: asks for 0 requests; must be at least 1")
    return times


def _refuse(given: str, others: Mapping[str, object]) -> None:
    """Raise LoadInputError for an option that has no effect beside the one given."""
    for option, value in others.items():
        if value is not None:
            raise load.LoadInputError(f"{option} = {value}: must be absent with {given}")


async def _run(
    stream: load.Stream,
    url: str,
    timeout: float,
    authorization: str | None,
    tls: ssl.SSLContext | None,
) -> tuple[load.LoadReport, bool]:
    """Return the report, and whether Ctrl-C ended the load early."""
    interrupted = False
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[ends]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(stream.model, total=len(stream.arrivals), ends="")

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
            url,
            timeout=timeout,
            authorization=authorization,
            tls=tls,
            on_progress=show,
            on_start=on_start,
        )
    return report, interrupted

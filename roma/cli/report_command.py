"""`roma report`: a page on a run that was recorded or simulated."""

from pathlib import Path
from typing import Annotated

import typer

from roma.cli import extras
from roma.config import file_edit
from roma.domain.errors import ConfigError
from roma.telemetry.logs import escaped


def command(
    run: Annotated[
        Path,
        typer.Argument(
            help="What `control.decision_log` or `simulate --decision-log` wrote.", metavar="RUN"
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(help="Write the pictures as PNG into this directory too.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Default: the name of the directory.")] = None,
) -> None:
    """Write one page on RUN: promises, cores, what went wrong when, and why."""
    extras.required("roma report", "design", "matplotlib")
    from roma.ui.report.build import build

    try:
        report = build(run, title=title, pictures=png)
        out.parent.mkdir(parents=True, exist_ok=True)
        # The name of a directory, which is the title, need not be UTF-8.
        file_edit.output(out, report.html.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(
            f"roma report: {error.filename or out}: cannot be written: {error.strerror}"
        ) from error
    for sentence in (*report.said, *report.notes):
        print(escaped(sentence))  # names and reasons come from a file
    print(f"wrote {out}")

"""`roma render compose`: a deployment as files for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from roma.cli.loading import checked
from roma.cli.options import ConfigFile
from roma.deploy import secrets
from roma.deploy.compose import SETTINGS, render
from roma.domain.errors import ConfigError

command = typer.Typer(help="Write a deployment for other tools.", no_args_is_help=True)


@command.callback()
def group() -> None:
    """Write a deployment for other tools."""


@command.command()
def compose(
    file: ConfigFile,
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("compose"),
) -> None:
    """Write FILE's deployment as compose.yaml, and the files that its containers read."""
    loaded = checked(file)
    written = render(loaded, file, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            if name == SETTINGS and (out / name).exists():
                print(f"kept  {out / name}")
                continue
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
            print(f"wrote {out / name}")
        for path in secrets.write(loaded, out):
            print(f"wrote {path}")
    except OSError as error:
        raise ConfigError(f"out = {out}: cannot be written: {error}") from error

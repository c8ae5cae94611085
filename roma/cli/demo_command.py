"""`roma demo`: two real models under a stepping load."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from controllers.registry import LAWS
from roma.domain.errors import ConfigError
from roma.tools.demo.run import DemoOptions, run


def command(
    cache: Annotated[Path, typer.Option(help="Where prepared models are kept.")] = Path(".cache"),
    seconds: Annotated[float, typer.Option(min=10, help="Length of the stepping load.")] = 90.0,
    law: Annotated[str, typer.Option(help="Control law to show.")] = "late_share",
    compare: Annotated[
        bool, typer.Option("--compare", help="Run the same load again under the law `rules`.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    picture: Annotated[
        Path | None, typer.Option(help="Save the live table and the result as an SVG file.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Keep two real TensorFlow models under their SLAs on this machine, and report honestly."""
    if law not in LAWS:  # before the models are built, which takes a minute
        raise ConfigError(f"--law = {law}: must be one of {', '.join(LAWS)}")
    sys.exit(run(DemoOptions(cache, seconds, law, compare, seed, picture, json_output)))

"""Options and arguments that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from roma.domain.errors import ConfigError

K = TypeVar("K", bound=StrEnum)

AdminUrl = Annotated[
    str | None,
    typer.Option(
        help="Admin address of a dispatcher. Default: that of --config, or http://127.0.0.1:8500.",
        metavar="URL",
    ),
]
AdminConfig = Annotated[
    Path | None, typer.Option("--config", help="The roma.yaml that says where, and by which token.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the admin token. Default: that of --config.")
]
Authority = Annotated[
    Path | None, typer.Option(help="PEM with the authority of the dispatcher's certificate.")
]
KubeContext = Annotated[
    str | None,
    typer.Option(
        help="Context of your kubeconfig: reach the dispatcher by `kubectl port-forward`.",
        metavar="NAME",
    ),
]
KubeNamespace = Annotated[
    str | None,
    typer.Option(help="Namespace there. Default: that of --config, else of the context."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen beyond this machine though nothing says who may connect."
    ),
]
ConfigFile = Annotated[Path, typer.Argument(help="A roma.yaml.", metavar="FILE")]


def choice(option: str, value: str, kind: type[K]) -> K:
    """Return a member of an enumeration by its value; raise ConfigError naming the option."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option} = {value}: must be one of {', '.join(kind)}") from None

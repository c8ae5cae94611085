"""`roma serve-model`: the embedded model server as a program."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from roma.domain.errors import ConfigError
from roma.serving.server import ServerSettings, run_model_server
from roma.tensors import frameworks


def command(
    model: Annotated[
        list[str], typer.Option(help="NAME=DIRECTORY with numbered versions; repeatable.")
    ],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    host: str = "127.0.0.1",
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket for REST, instead of a port.")
    ] = None,
    intra_op: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    inter_op: Annotated[int, typer.Option(min=1, help="Requests computed at once.")] = 1,
    max_body_bytes: Annotated[int, typer.Option(min=1024)] = 64 * 2**20,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the gRPC protocols; 0 takes a free one."),
    ] = None,
    grpc_socket: Annotated[
        Path | None, typer.Option(help="Unix socket of the gRPC protocols, beside or for a port.")
    ] = None,
    allow_reload: Annotated[
        bool,
        typer.Option(
            "--allow-reload",
            help="Let gRPC clients choose the models (HandleReloadConfigRequest), in any folder.",
        ),
    ] = False,
) -> None:
    """Serve SavedModels with TensorFlow Serving's APIs and the Open Inference Protocol."""
    if not host:  # a variable that is not set: every interface would listen
        raise ConfigError("--host = '': must be an address, such as 127.0.0.1 or 0.0.0.0")
    frameworks.skip_keras()
    settings = ServerSettings(
        models=_named_paths(model),
        host=host,
        port=port,
        socket=socket,
        grpc_port=grpc_port,
        grpc_socket=grpc_socket,
        allow_reload=allow_reload,
        intra_op=intra_op,
        inter_op=inter_op,
        max_body_bytes=max_body_bytes,
    )
    asyncio.run(run_model_server(settings))


def _named_paths(texts: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not (name and path):
            raise ConfigError(f"--model = {text}: must be NAME=DIRECTORY")
        if name in found:
            raise ConfigError(f"--model = {text}: must have another name than {name}={found[name]}")
        found[name] = Path(path)
    return found

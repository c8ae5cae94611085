"""`roma models add | remove | scale`: edits a roma.yaml and waits until it is in force."""

import asyncio
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from roma.config import schema as configs
from roma.config.schema import Config
from roma.deploy import config_edit, ready, replicas
from roma.deploy.config_edit import Document
from roma.domain.errors import ConfigError, LaunchError, ModelUnavailable
from roma.domain.model import Statistic
from roma.security import tokens
from roma.security.tls import client_context
from roma.security.tokens import Token

command = typer.Typer(
    help="Add, remove and scale models; a deployment that runs follows.",
    no_args_is_help=True,
    add_completion=False,
)

File = Annotated[Path, typer.Argument(help="A roma.yaml.", metavar="FILE")]
Model = Annotated[str, typer.Argument(help="Name of the model.", metavar="MODEL")]
Wait = Annotated[
    float, typer.Option(min=0, help="Seconds to wait until a running deployment has followed.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with a key for the gateway, where it asks for one.")
]

LOOK = 0.2
"""Seconds between two looks at the gateway."""

ANSWER = 5.0
"""Seconds that the gateway may take to answer: the model server that it asks may be busy."""

_OTHER_NAME = (62, 64)
"""OpenSSL's errors for a certificate of another host name, and of another address."""

TOO_MANY = 429

SILENT = 0
"""In place of a status: the gateway took the request and has not answered it."""

IN_A_ROW = 8
"""Answers per process of the gateway; each takes a connection, which the kernel deals out."""


@command.command()
def add(
    file: File,
    model: Model,
    response_time: Annotated[float, typer.Option(help="Promised response time in seconds.")],
    path: Annotated[Path | None, typer.Option(help="Directory with numbered versions.")] = None,
    volume: Annotated[str | None, typer.Option(help="Named volume that holds them.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Share of the requests that may be late; default: 0.02.")
    ] = None,
    statistic: Annotated[Statistic | None, typer.Option(help="Instead of a budget.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Set point as a share of a promised mean.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory limit, e.g. 2GiB.")] = None,
    minimum: Annotated[float | None, typer.Option("--min", help="Least cores.")] = None,
    maximum: Annotated[float | None, typer.Option("--max", help="Most cores.")] = None,
    wait: Wait = 120.0,
    token_file: TokenFile = None,
) -> None:
    """Write MODEL into FILE; what else a model can have is written there by hand."""
    sla = {
        "response_time": response_time,
        "budget": budget,
        "statistic": statistic,
        "alpha": alpha,
    }
    entry: dict[str, Any] = {
        "path": None if path is None else _beside(file, path),
        "volume": volume,
        "memory": memory,
        "sla": _given(sla),
        "cpu": _given({"min": minimum, "max": maximum}) or None,
    }

    def change(document: Document) -> None:
        if model in document["models"]:
            raise ConfigError(f"{file}: models.{model}: is there already")
        document["models"][model] = _given(entry)

    loaded = _edited(file, change)
    if wait:
        _until(loaded, model, 200, wait, _token(token_file))


@command.command()
def remove(file: File, model: Model, wait: Wait = 60.0, token_file: TokenFile = None) -> None:
    """Take MODEL out of FILE; whoever waits for it is still answered."""

    def change(document: Document) -> None:
        if model not in document["models"]:
            known = ", ".join(document["models"])
            raise ConfigError(f"{file}: models.{model}: must be one of {known}")
        del document["models"][model]

    loaded = _edited(file, change)
    if wait:
        _until(loaded, model, 404, wait, _token(token_file))


@command.command()
def scale(
    file: File,
    model: Model,
    count: Annotated[int, typer.Argument(help="Number of replicas.", metavar="REPLICAS", min=1)],
    wait: Wait = 120.0,
) -> None:
    """Start or stop replicas of MODEL; no other model moves.

    Backends `process` and `docker` follow FILE, whose `models.MODEL.workers` names the workers; of
    backend `kubernetes` the Deployment is scaled, as `kubectl scale` does.
    """
    loaded = configs.load(file)
    if model not in loaded.models:
        raise ConfigError(f"model = {model}: must be one of {', '.join(loaded.models)}")
    found = replicas.scaler(file, loaded)

    wanted = asyncio.run(_scaled(found, model, count))
    if not wanted:
        print(f"{model} has {count} already")
    elif wait and any(w.is_placed for w in loaded.workers):
        if asyncio.run(ready.replicas_serve(configs.load(file), model, wait)):
            print(f"{model} is served by {count}")
        else:
            at = loaded.gateway.exchange_urls[0]
            print(f"nothing answers at {at}: in force when `roma up` starts")


async def _scaled(scaler: replicas.ReplicaScaler, model: str, count: int) -> int:
    """Carry out the commands for `count` replicas and say what was done; return how many."""
    commands = await scaler.commands(model, count)
    for line in await scaler.carry_out(commands):
        print(line)
    return len(commands)


def _given(values: MutableMapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.value if isinstance(value, Statistic) else value
        for key, value in values.items()
        if value is not None
    }


def _beside(file: Path, path: Path) -> str:
    """Return a path as roma.yaml means it: relative to its own directory, not to a link's."""
    return os.path.relpath(path.absolute(), os.path.dirname(os.path.realpath(file)))


def _edited(file: Path, change: Callable[[Document], None]) -> Config:
    """Change a file, say so, and return what it says now."""
    new = config_edit.edit(file, change)
    print(f"wrote {file}")
    return new


def _until(config: Config, model: str, status: int, limit: float, token: Token | None) -> None:
    """Wait until the gateway, if one answers, knows the model or no longer does.

    Of several processes any may answer: it waits for so many answers in a row that all will have.
    """
    gateway = config.gateway.url
    url = f"{gateway}/v1/models/{model}"
    tls = config.gateway.tls
    context = None
    if tls is not None:
        context = client_context(tls.ca, tls, key="gateway.tls.ca", own_key="gateway.tls")
    deadline = time.monotonic() + limit
    needed = 1 if config.gateway.processes == 1 else IN_A_ROW * config.gateway.processes
    row = 0
    while (row := row + 1) <= needed:
        found, reason = _status(url, token, context)
        if found == status:
            continue
        if found == TOO_MANY:  # the key's rate; what was seen before still holds
            row -= 1
        else:
            row = 0
        if found is None:
            print(f"nothing answers at {gateway}: in force when `roma up` starts")
            return
        if found in (401, 403):
            needed_key = "--token-file must name a file with a key that may call this model"
            raise LaunchError(f"{url}: status {found}: the file is written; to wait, {needed_key}")
        if reason and status != 404:  # what goes may be as broken as it likes
            raise ModelUnavailable(
                f"{model} cannot be served: {reason}; it is written, and tried again until it is "
                f"put right or removed (roma models remove)"
            )
        if time.monotonic() > deadline:
            said = "no answer" if found == SILENT else f"status {found}"
            raise LaunchError(
                f"{url}: {said} after {limit:g} s, must be {status}: the file is written; "
                "the log of `roma up` says why it is not in force"
            )
        time.sleep(LOOK)
    print(f"{model} is served" if status == 200 else f"{model} is gone")


def _token(file: Path | None) -> Token | None:
    return None if file is None else tokens.read(file)


def _status(
    url: str, token: Token | None, context: ssl.SSLContext | None
) -> tuple[int | None, str]:
    """Return the status, None without an answer, and why the model is unavailable for good.

    Raises LaunchError for an answer that is no gateway's.
    """
    headers = {} if token is None else {"Authorization": token.authorization}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http(s), as written above
    # Not by way of a proxy that the environment names: it would learn the key.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=ANSWER) as response:
            versions = json.load(response)["model_version_status"]
            return 200 if any(v["state"] == "AVAILABLE" for v in versions) else 503, ""
    except urllib.error.HTTPError as error:
        return int(error.code), _reason(error)
    except TimeoutError:  # of the answer; one of the connection is in a URLError
        return SILENT, ""
    except OSError as error:
        why = getattr(error, "reason", error)
        if isinstance(why, ssl.SSLError):
            said = getattr(why, "verify_message", None) or why.reason or why
            needed = "gateway.tls.ca must name the authority of its certificate"
            if getattr(why, "verify_code", 0) in _OTHER_NAME:
                needed = f"its certificate must name {urlsplit(url).hostname}, too"
            words = str(said).rstrip(".")
            raise LaunchError(f"{url}: {words}: the file is written; to wait, {needed}") from error
        return None, ""
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise LaunchError(
            f"{url}: what answers is no gateway: the file is written; is gateway.port another "
            "program's?"
        ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    """Return what the gateway says of a model that nothing can serve; empty: it may still load."""
    try:
        (version,) = json.load(error)["model_version_status"]
        return str(version["status"]["error_message"]) if version["state"] == "END" else ""
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""

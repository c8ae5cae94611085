"""`roma status`, `roma top` and `roma explain`: the board and its story, over the network."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from rich.console import Console
from rich.live import Live
from rich.text import Text

from roma.cli.console import wide_console
from roma.cli.dashboard_table import Screen, board, clock
from roma.config import schema as configs
from roma.domain.errors import ExchangeError
from roma.security import peers, tokens
from roma.security.tls import client_context
from roma.security.tokens import Token
from roma.telemetry.reachability import reason

DEFAULT = "http://127.0.0.1:8500"

LIMIT = 5.0
"""Seconds that a dispatcher may take to answer."""

PERIOD = 1.0
"""Seconds between two looks of `roma top`."""


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """A dispatcher's admin port, and how it is called."""

    url: str
    token: Token | None = None
    tls: ssl.SSLContext | None = None


def target(
    url: str | None, file: Path | None, token_file: Path | None, ca: Path | None
) -> AdminTarget:
    """Return what the command line means; a roma.yaml says what its other options do not."""
    config = None if file is None else configs.load(file)
    if url is None:
        url = DEFAULT if config is None else config.gateway.admin_url
    if token_file is None and config is not None:
        token = tokens.watched(config.tokens.admin, "tokens.admin")
    else:
        token = tokens.watched(token_file, "--token-file")
    tls = client_context(ca, key="--ca") if ca is not None else None
    if config is not None and ca is None and url.startswith("https:"):
        tls = peers.to_dispatchers(config)
    return AdminTarget(url, None if token is None else token.value, tls)


@dataclass(frozen=True, slots=True)
class Explain:
    """The command line of `roma explain`."""

    model: str
    seconds: float
    json_output: bool


def status(at: AdminTarget, *, json_output: bool) -> None:
    """Print the board once."""
    view = asyncio.run(_fetch(at, "dashboard", {}))
    if json_output:
        print(json.dumps(view, indent=2))
    else:
        console = wide_console()
        console.print(board(view, Screen(console.width)))


def top(at: AdminTarget) -> None:
    """Show the board until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        asyncio.run(_top(at))


def explain(at: AdminTarget, options: Explain) -> None:
    """Print why a model got the cores it got, oldest first."""
    query = {"model": options.model, "seconds": f"{options.seconds:g}"}
    story = asyncio.run(_fetch(at, "decisions", query))
    if options.json_output:
        print(json.dumps(story, indent=2))
        return
    console = Console(soft_wrap=True)
    for record in _told(story, options.model):
        console.print(record)
    for worker, why in story["silent"].items():
        line = f"The supervisor of {worker} does not answer ({why}): its decisions are missing."
        console.print(Text(line, "yellow"))
    if not (story["decisions"] or story["refusals"][options.model] or story["silent"]):
        console.print(
            f"Nothing was decided for {options.model} in the last {options.seconds:g} s: "
            "no supervisor controls its executables."
        )


def _told(story: Mapping[str, Any], model: str) -> list[Text]:
    lines = [
        (d["at"], Text.assemble((f"{clock(d['at'])} {d['executable']} ", "bold"), d["words"]))
        for d in story["decisions"]
    ]
    lines += [
        (
            r["at"],
            Text.assemble(
                (f"{clock(r['at'])} request {r['request']} refused ", "bold red"),
                f"({r['reason']}): {r['detail']}",
            ),
        )
        for r in story["refusals"][model]
    ]
    return [line for _, line in sorted(lines, key=lambda line: line[0])]


async def _top(at: AdminTarget) -> None:
    view = await _fetch(at, "dashboard", {})
    error, since = "", time.time()
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            screen = Screen(console.width, console.height)
            live.update(board(view, screen, error), refresh=True)
            await asyncio.sleep(PERIOD)
            try:
                view, error = await _fetch(at, "dashboard", {}), ""
                since = time.time()
            except ExchangeError as failure:
                error = f"{failure}; as of {clock(since)}"


def _why(error: Exception) -> str:
    return f"nothing within {LIMIT:g} s" if isinstance(error, TimeoutError) else reason(error)


async def _fetch(at: AdminTarget, what: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what a dispatcher's admin port answers."""
    url = at.url
    address = f"{url.rstrip('/')}/control/v1/{what}"
    headers = {} if at.token is None else {"Authorization": at.token.authorization}
    try:
        async with (
            peers.session(at.tls, LIMIT) as session,
            # No redirect: the token is for this address.
            session.get(address, params=query, headers=headers, allow_redirects=False) as response,
        ):
            body = await response.read()
            answer = orjson.loads(body)
            if response.status == 401:
                raise ExchangeError(f"{url}: asks for its token: --token-file, or --config")
            if response.status != 200:
                raise ExchangeError(f"{url}: {answer['error']}")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ExchangeError(f"{url}: no dispatcher answers: {_why(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExchangeError(f"{url}: not a dispatcher's admin port") from error
    if not isinstance(answer, dict):
        raise ExchangeError(f"{url}: not a dispatcher's admin port")
    return answer

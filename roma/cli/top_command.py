"""`roma top`: the dashboard, once a second; below each other where there is no screen."""

import asyncio
import contextlib
import time

from rich.live import Live

from roma.cli.console import wide_console
from roma.cli.dashboard_client import AdminTarget, fetch, printable, reading, target
from roma.cli.dashboard_table import Screen, clock, dashboard
from roma.cli.options import AdminConfig, AdminUrl, Authority, KubeContext, KubeNamespace, TokenFile
from roma.domain.errors import ExchangeError
from roma.telemetry.logs import escaped

PERIOD = 1.0
"""Seconds between two looks."""


def command(
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    kube_context: KubeContext = None,
    namespace: KubeNamespace = None,
) -> None:
    """Show the same as `roma status` once a second, until Ctrl-C."""
    at = target(url, config, token_file, ca, kube_context, namespace)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        asyncio.run(_top(at))


async def _top(target: AdminTarget) -> None:
    async with target.reached() as at:
        await _show(at)


async def _show(at: AdminTarget) -> None:
    view = await fetch(at, "dashboard", {})
    error, since = "", time.time()
    console = wide_console()
    with contextlib.ExitStack() as stack:
        live = None
        # A dumb terminal has no screen to redraw: rich would show nothing.
        if console.is_terminal and not console.is_dumb_terminal:
            live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        while True:
            screen = Screen(console.width, None if live is None else console.height)
            with reading(at):
                shown = dashboard(printable(view), screen, escaped(error))
            if live is None:
                console.print(shown)
            else:
                live.update(shown, refresh=True)
            await asyncio.sleep(PERIOD)
            try:
                view, error = await fetch(at, "dashboard", {}), ""
                since = time.time()
            except ExchangeError as failure:
                error = f"{failure}; as of {clock(since)}"

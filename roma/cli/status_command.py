"""`roma status`: the dashboard, once."""

import json
from typing import Annotated

import typer

from roma.cli.console import wide_console
from roma.cli.dashboard_client import fetch_once, printable, reading, target
from roma.cli.dashboard_table import Screen, dashboard
from roma.cli.options import AdminConfig, AdminUrl, Authority, KubeContext, KubeNamespace, TokenFile


def command(
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    kube_context: KubeContext = None,
    namespace: KubeNamespace = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show every model now: its promise, its load, its cores and why; worst first."""
    at = target(url, config, token_file, ca, kube_context, namespace)
    view = fetch_once(at, "dashboard", {})
    if json_output:
        print(json.dumps(view, indent=2))
    else:
        console = wide_console()
        with reading(at):
            shown = dashboard(printable(view), Screen(console.width))
        console.print(shown)

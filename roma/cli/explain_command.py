"""`roma explain`: decisions and refusals of one model, in words."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from roma.cli.dashboard_client import fetch_once, printable, reading, target
from roma.cli.dashboard_table import clock
from roma.cli.options import AdminConfig, AdminUrl, Authority, KubeContext, KubeNamespace, TokenFile


def command(
    model: Annotated[str, typer.Argument(help="The model to explain.")],
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    kube_context: KubeContext = None,
    namespace: KubeNamespace = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            max=900,
            help="How far back. At most 900 decisions are kept per executable (15 minutes at a "
            "period of 1 s, 3 at 0.2 s), fewer with more than 22 executables.",
        ),
    ] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Say why MODEL got the cores it got, and which requests were refused, oldest first."""
    query = {"model": model, "seconds": f"{seconds:g}"}
    at = target(url, config, token_file, ca, kube_context, namespace)
    decisions = fetch_once(at, "decisions", query)
    if json_output:
        print(json.dumps(decisions, indent=2))
        return
    console = Console(soft_wrap=True)
    with reading(at):
        lines = _lines(printable(decisions), model)
    for line in lines:
        console.print(line)
    if not lines:
        console.print(
            f"Nothing was decided for {model} in the last {seconds:g} s: "
            "no supervisor controls its executables, or its periods are longer."
        )


def _lines(decisions: Mapping[str, Any], model: str) -> list[Text]:
    """Return the records by their time, then the supervisors whose records are missing."""
    found = [
        (d["at"], Text.assemble((f"{clock(d['at'])} {d['executable']} ", "bold"), d["words"]))
        for d in decisions["decisions"]
    ]
    found += [
        (
            r["at"],
            Text.assemble(
                (f"{clock(r['at'])} request {r['request']} refused ", "bold red"),
                f"({r['reason']}): {r['detail']}",
            ),
        )
        for r in decisions["refusals"][model]
    ]
    lines = [line for _, line in sorted(found, key=lambda line: line[0])]
    for worker, why in decisions["silent"].items():
        line = f"The supervisor of {worker} does not answer ({why}): its decisions are missing."
        lines.append(Text(line, "yellow"))
    return lines

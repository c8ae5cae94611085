"""Output of `roma design`: tables for people, JSON for programs."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controllers.design.identify import Fit
    from controllers.design.plant import Plant
    from controllers.design.robustness import Controller, Verdict


def fit_as_data(fit: "Fit") -> dict[str, Any]:
    """Return a fit without its series."""
    shown = ("k_error", "b_error", "dead_time", "cores", "throughput", "response_time")
    data = {name: getattr(fit, name) for name in (*shown, "spread", "r_squared", "per_core")}
    plant = {"k": fit.plant.k, "b": fit.plant.b, "period": fit.plant.period}
    return plant | data | {"n": len(fit.measured), "warnings": fit.warnings}


def judged(controller: "Controller", plant: "Plant", *, json_output: bool = False) -> None:
    """Print what a loop survives with 0-3 periods of dead time."""
    from controllers.design import robustness as design

    verdicts = design.main(controller, plant)
    if json_output:
        as_json([_verdict_as_data(v) for v in verdicts])
        return
    rows = [
        [
            str(v.dead_time),
            f"{v.radius:.4f}",
            "yes" if v.stable else "no",
            "-" if v.spread is None else f"{v.spread[0]:.2f} - {v.spread[1]:.2f}",
            "-" if v.phase_margin is None else f"{v.phase_margin:.0f}",
            "-" if v.peak is None else f"{v.peak:.2f}",
            f"{design.small_gain_lead(controller.a, plant.b, v.dead_time):+.2f}",
        ]
        for v in verdicts
    ]
    columns = ["n", "largest pole", "stable", "gain ×", "PM (°)", "Ms", "lead (T)"]
    title = f"K = {controller.K:.4g} cores/s, a = {controller.a:.4g}, b = {plant.b:+.4g}"
    table(title, columns, rows)


def _verdict_as_data(verdict: "Verdict") -> dict[str, Any]:
    spread = verdict.spread and [x if math.isfinite(x) else None for x in verdict.spread]
    return asdict(verdict) | {
        "poles": [[pole.real, pole.imag] for pole in verdict.poles],
        "spread": spread,
        "stable": verdict.stable,
    }


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    printed = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD)
    for column in columns:
        printed.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        printed.add_row(*row)
    Console().print(printed)


def warn(warnings: "Iterable[str]") -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def as_json(data: Any) -> None:
    """Print data for programs."""
    print(json.dumps(data, indent=2))

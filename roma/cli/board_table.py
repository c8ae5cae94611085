"""The board as a table for terminals: the rows of the live page, worst first."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from roma import units

_STYLES = {"down": "bold red", "late": "red", "tight": "yellow", "ok": "green", "idle": "dim"}

_MARKS = {"down": "✖", "late": "▲", "tight": "◆", "ok": "●", "idle": "○"}
"""The state must be readable without colours."""

WIDE = 130
"""Columns of a screen from which on all numbers are shown."""

CHROME = 6
"""Lines of a screen that are not rows of models."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What there is room for, in columns and lines."""

    width: int = 160
    height: int | None = None


def board(view: Mapping[str, Any], screen: Screen | None = None, error: str = "") -> Group:
    """Return a view, as `GET /control/v1/view` gives it, fit for a screen."""
    screen, models = screen or Screen(), view["models"]
    lines: list[Text | Table] = [_headline(view)]
    lines += [_worker(worker) for worker in view["workers"]]
    if error:
        lines.append(Text(error, "bold red"))
    room = None if screen.height is None else max(1, screen.height - CHROME - len(lines))
    lines.append(_table(models[:room], wide=screen.width >= WIDE))
    if room is not None and len(models) > room:
        lines.append(Text(f"and {len(models) - room} more that do better", "dim"))
    return Group(*lines)


def clock(at: float) -> str:
    """Return the time of day of seconds since the epoch."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _headline(view: Mapping[str, Any]) -> Text:
    bad = [m for m in view["models"] if m["state"] in ("down", "late")]
    word = "all promises kept" if not bad else f"{len(bad)} of {len(view['models'])} models late"
    if not view["at"]:
        word = "nothing was looked at yet"
    style = "bold red" if bad else "bold green"
    return Text.assemble((f"{view['name']} ", "bold"), (word, style), f"  {clock(view['at'])}")


def _worker(worker: Mapping[str, Any]) -> Text:
    if not worker["answers"]:
        why = f"silent for {worker['silent_for']:.0f} s: {worker['error']}"
        return Text.assemble(f"worker {worker['worker']}: ", (why, "bold red"))
    eta = worker["eta"]
    short = eta is not None and eta < 1
    text = (
        f"{_cores(worker['demanded'])} wanted, {_cores(worker['applied'])} applied, "
        f"{_cores(worker['used'])} used of {_cores(worker['capacity'])} cores"
    )
    contended = worker.get("contended", False)
    more = "  its host is busy with others" if contended else "  short of cores" if short else ""
    mode = "" if worker["mode"] == "control" else f"  {worker['mode']}"
    return Text.assemble(f"worker {worker['worker']}: {text}", (more, "red"), (mode, "yellow"))


def _table(models: Sequence[Mapping[str, Any]], *, wide: bool) -> Table:
    # `why` takes what the others leave, and never takes from them.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("model", no_wrap=True, max_width=40)
    columns = {name: cell for name, cell in _NUMBERS.items() if wide or name in _NARROW}
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=1, min_width=12)
    for m in models:
        style = _STYLES[m["state"]]
        cells = [Text(cell(m), style if name == "RT ms" else "") for name, cell in columns.items()]
        table.add_row(Text(f"{_MARKS[m['state']]} {m['model']}", style), *cells, Text(m["why"]))
    return table


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{units.milliseconds(seconds):.0f}"


def _cores(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.2f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


_NUMBERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "RT ms": lambda m: _milliseconds(m["response_time"]),
    "SLA ms": lambda m: _milliseconds(m["sla"]),
    "req/s": lambda m: f"{m['arrivals']:.0f}",
    "queue": lambda m: f"{m['waiting']}+{m['in_flight']}",
    "on GPU": lambda m: _share(m["gpu_share"]),
    "wanted": lambda m: _cores(m["demanded"]),
    "granted": lambda m: _cores(m["allocated"]),
    "applied": lambda m: _cores(m["applied"]),
    "used": lambda m: _cores(m["used"]),
    "throttled": lambda m: _share(m["throttled"]),
    "late": lambda m: _share(m["late_share"]),
}

_NARROW = ("RT ms", "SLA ms", "req/s", "queue", "wanted", "applied", "late")

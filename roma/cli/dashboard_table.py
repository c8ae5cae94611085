"""The dashboard as a table for terminals: the rows of the live page, worst first."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from roma.domain import units

_STYLES = {"down": "bold red", "late": "red", "tight": "yellow", "ok": "green", "idle": "dim"}

_MARKS = {"down": "✖", "late": "▲", "tight": "◆", "ok": "●", "idle": "○"}
"""The state must be readable without colours."""

CHROME = 6
"""Lines of a screen that are not rows of models."""

NAME = 40
"""Columns of a model's name at most."""

GAP = 3
"""Columns between two columns of the table."""

GPU = "on GPU"

Cell = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Screen:
    """The size of a terminal, in columns and lines."""

    width: int = 160
    height: int | None = None


def dashboard(view: Mapping[str, Any], screen: Screen | None = None, error: str = "") -> Group:
    """Return a view, as `GET /control/v1/dashboard` gives it, fit for a screen."""
    screen, models = screen or Screen(), view["models"]
    lines: list[Text | Table] = [_headline(view)]
    lines += [_worker(worker) for worker in view["workers"]]
    if error:
        lines.append(Text(error, "bold red"))
    columns = _columns(models, screen)
    # A reason is never cut: below the table it has the whole width.
    beside = _width(models, {**columns, "why": lambda m: str(m["why"])}) <= screen.width
    room = None if screen.height is None else screen.height - CHROME - _height(lines, screen)
    shown = models if room is None else _first(models, room, None if beside else screen.width)
    lines.append(_table(shown, columns, beside=beside))
    if not beside:
        lines += map(_reason, shown)
    if len(models) > len(shown):
        lines.append(Text(f"and {len(models) - len(shown)} more that do better", "dim"))
    return Group(*lines)


def clock(at: float) -> str:
    """Return the time of day of seconds since the epoch."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _headline(view: Mapping[str, Any]) -> Text:
    states = [m["state"] for m in view["models"]]
    bad = [(states.count(state), state) for state in ("down", "late") if state in states]
    word = "all promises kept"
    if bad:
        (count, state), *more = bad
        said = (f"{count} of {len(states)} models {state}", *(f"{n} {s}" for n, s in more))
        word = ", ".join(said)
    if not view["at"]:
        return Text.assemble((f"{view['name']} ", "bold"), "nothing was looked at yet")
    style = "bold red" if bad else "bold green"
    return Text.assemble((f"{view['name']} ", "bold"), (word, style), f"  {clock(view['at'])}")


def _worker(worker: Mapping[str, Any]) -> Text:
    if not worker["answers"]:
        why = f"silent for {worker['silent_for']:.0f} s: {worker['error']}"
        lost = "  its cores are not controlled" if worker.get("uncontrolled") else ""
        return Text.assemble(f"worker {worker['worker']}: ", (why + lost, "bold red"))
    eta = worker["eta"]
    short = eta is not None and eta < 1
    text = (
        f"{_cores(worker['demanded'])} demanded, {_cores(worker['applied'])} applied, "
        f"{_cores(worker['used'])} used of {_cores(worker['capacity'])} cores"
    )
    contended = worker.get("contended", False)
    more = "  its host is busy with others" if contended else "  short of cores" if short else ""
    mode = "" if worker["mode"] == "control" else f"  {worker['mode']}"
    style, uncontrolled = "yellow", worker.get("uncontrolled")
    if uncontrolled:
        style, mode = "bold red", f"  not controlled: {uncontrolled}"
    return Text.assemble(f"worker {worker['worker']}: {text}", (more, "red"), (mode, style))


def _columns(models: Sequence[Mapping[str, Any]], screen: Screen) -> dict[str, Cell]:
    """Return the numbers that there is room for; those of GPUs only where there are some."""
    has_gpu = any(e["device"] == "gpu" for m in models for e in m["executables"])
    found = {name: cell for name, cell in _NUMBERS.items() if has_gpu or name != GPU}
    if _width(models, found) <= screen.width:
        return found
    found = {name: cell for name, cell in found.items() if name in _NARROW}
    for name in _SPARED:  # a number that is cut in two would be another one
        if _width(models, found) > screen.width:
            del found[name]
    return found


def _width(models: Sequence[Mapping[str, Any]], columns: Mapping[str, Cell]) -> int:
    """Return the width of a table with these columns beside the models' names."""
    names = max((cell_len(_named(m)) for m in models), default=0)
    widths = [
        max(cell_len(name), *(cell_len(cell(m)) for m in models)) if models else cell_len(name)
        for name, cell in columns.items()
    ]
    return min(NAME, names) + sum(GAP + width for width in widths) + 2


def _table(
    models: Sequence[Mapping[str, Any]], columns: Mapping[str, Cell], *, beside: bool
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True, max_width=NAME)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if beside:
        table.add_column("why", no_wrap=True)
    for m in models:
        style = _STYLES[m["state"]]
        cells = [Text(cell(m), style if name == "RT ms" else "") for name, cell in columns.items()]
        why = [Text(m["why"])] if beside else []
        table.add_row(Text(_named(m), style), *cells, *why)
    return table


def _named(m: Mapping[str, Any]) -> str:
    return f"{_MARKS[m['state']]} {m['model']}"


def _reason(m: Mapping[str, Any]) -> Text:
    return Text.assemble((f"{_named(m)}: ", _STYLES[m["state"]]), m["why"], overflow="fold")


def _first(
    models: Sequence[Mapping[str, Any]], room: int, width: int | None
) -> Sequence[Mapping[str, Any]]:
    """Return the models that `room` lines show, one at least; with reasons below if `width`."""
    shown = 0
    for m in models:
        room -= 1 if width is None else 1 + _height([_reason(m)], Screen(width))
        if room < 0:
            break
        shown += 1
    return models[: max(1, shown)]


def _height(lines: Sequence[Text | Table], screen: Screen) -> int:
    """Return the lines of a screen that these take, about: words wrap a little earlier."""
    return sum(
        1 + (cell_len(line.plain) * 10 // 9) // screen.width if isinstance(line, Text) else 1
        for line in lines
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{units.milliseconds(seconds):.0f}"


def _cores(cores: float | None) -> str:
    return "-" if cores is None else f"{cores:.2f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _throttled(m: Mapping[str, Any]) -> str:
    """Return the throttled share; not every backend reports that of the cores it controls."""
    is_unknown = m["applied"] is not None and m["throttled"] is None
    return "unknown" if is_unknown else _share(m["throttled"])


def _response_time(m: Mapping[str, Any]) -> str:
    """Return it, or the age of the oldest request: the time will be more than that."""
    if m["response_time"] is None and (m["waiting"] or m["in_flight"]):
        return f">{_milliseconds(m['oldest_age'])}"
    return _milliseconds(m["response_time"])


_NUMBERS: dict[str, Cell] = {
    "RT ms": _response_time,
    "SLA ms": lambda m: _milliseconds(m["sla"]),
    "req/s": lambda m: f"{m['arrivals']:.0f}",
    "queue": lambda m: f"{m['waiting']}+{m['in_flight']}",
    GPU: lambda m: _share(m["gpu_share"]),
    "demand": lambda m: _cores(m["demanded"]),
    "allocation": lambda m: _cores(m["allocated"]),
    "applied": lambda m: _cores(m["applied"]),
    "used": lambda m: _cores(m["used"]),
    "throttled": _throttled,
    "late": lambda m: _share(m["late_share"]),
}

_NARROW = ("RT ms", "SLA ms", "req/s", "queue", "demand", "applied", "late")
_SPARED = ("queue", "demand", "req/s", "applied", "SLA ms")
"""Those of them that a still narrower screen does without, in this order."""

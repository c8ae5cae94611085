"""The demo's live table: one row per model, with the state of the whole control loop."""

from rich.console import Console
from rich.table import Table

from roma.domain import units
from roma.tools.demo.plan import MODELS, DemoModel
from roma.tools.demo.watch import DemoWatch


def render(title: str, watch: DemoWatch, elapsed: float, seconds: float) -> Table:
    """Return the table of the current state."""
    table = Table(title=f"{title}   {elapsed:3.0f} / {seconds:.0f} s", expand=False)
    table.add_column("model")
    figures = ("RT ms", "SLA ms", "queue", "req/s", "demand", "allocated", "kernel", "used", "late")
    for name in figures:
        table.add_column(name, justify="right")
    table.add_column("why", overflow="ellipsis", no_wrap=True, max_width=44)
    for model in MODELS:
        table.add_row(*_row(model, watch))
    table.caption = "demand, allocated, kernel (quota read back) and used are CPU cores"
    return table


def line(watch: DemoWatch, elapsed: float) -> str:
    """Return the same facts as one line, for output that is no terminal."""
    cells = []
    for model in MODELS:
        row = _row(model, watch)
        name, response, _, queue, rate, _, _, cores, used, late, _ = row
        cells.append(
            f"{name}: RT {response} ms, queue {queue}, {rate} req/s, "
            f"{cores} cores ({used} used), late {late}"
        )
    return f"{elapsed:4.0f} s  " + "   ".join(cells)


def _row(model: DemoModel, watch: DemoWatch) -> list[str]:
    report, executable = watch.reports.get(model.name), watch.executable(model.name)
    if report is None:
        return [model.name, *[""] * 10]
    answered = report.completed_cpu + report.completed_gpu
    response = report.response_time
    style = "red" if response and response > model.response_time else "green"
    return [
        model.name,
        f"[{style}]{units.milliseconds(response):.0f}[/]" if response is not None else "-",
        f"{units.milliseconds(model.response_time):.0f}",
        str(report.waiting),
        f"{watch.rate(model.name):.0f}",
        _cores(executable.get("demand")),
        _cores(executable.get("allocation")),
        _cores(watch.kernel[model.name].cores if model.name in watch.kernel else None),
        _cores(executable.get("used")),
        f"{report.late / answered:.1%}" if answered else "-",
        str(executable.get("why", "")),
    ]


def console(*, stderr: bool = False) -> Console:
    """Return a console, wide enough for the table even if the terminal's width is unknown."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(width=130, stderr=stderr)


def _cores(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

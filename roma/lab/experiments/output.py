"""An experiment's output on screen, in files (CSV, Markdown, PNG, SVG, JSON) and in documents."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from roma.config import file_edit
from roma.domain.errors import ConfigError
from roma.lab.experiments.base import Output, Picture, Table

DPI = 90
"""Of PNGs: legible at the width of a README, below 100 kB."""


def show(output: Output, console: Console) -> None:
    """Print every table, then the verdicts on the claims."""
    for table in output.tables:
        shown = RichTable(title=table.title, caption=table.note or None, caption_justify="left")
        for i, column in enumerate(table.columns):
            shown.add_column(column.name, justify="left" if i == 0 else "right")
        for row in table.rows:
            shown.add_row(*_cells(table, row))
        console.print(shown)
    for check in output.checks:
        said = ("aim reached", "aim missed") if check.is_aim else ("holds", "does not hold")
        mark = f"[green]{said[0]}[/]" if check.holds else f"[red]{said[1]}[/]"
        console.print(f"{mark}: {check.claim}")


def to_json(name: str, seeds: tuple[int, ...], output: Output) -> str:
    """Return everything but the pictures, with raw numbers."""
    data: dict[str, Any] = {
        "experiment": name,
        "seeds": list(seeds),
        "tables": {
            t.name: [dict(zip(_keys(t), row, strict=True)) for row in t.rows] for t in output.tables
        },
        "checks": [{"claim": c.claim, "holds": c.holds, "aim": c.is_aim} for c in output.checks],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def _keys(table: Table) -> list[str]:
    """Return the names of the columns; the second "±" is "± (2)", for a key is there once."""
    names = [c.name for c in table.columns]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, seen, strict=True)]


def save(output: Output, directory: Path, *, vector: bool = True) -> list[Path]:
    """Write every table (CSV, Markdown) and picture (PNG, SVG); return what was written.

    Raises ConfigError if the directory cannot be written.
    """
    file_edit.make(directory, "--out")
    written = []
    with file_edit.writing(f"--out = {directory}"):
        for table in output.tables:
            for suffix, text in ((".csv", _csv(table)), (".md", markdown(table))):
                path = directory / f"{table.name}{suffix}"
                file_edit.output(path, text)
                written.append(path)
        for picture in output.pictures:
            written += _save_picture(picture, directory, vector)
    return written


def fill(page: Path, name: str, output: Output, figures: Path | None = None) -> list[Path]:
    """Put tables and claims between the marks of a document, and figures beside it or elsewhere.

    Marks are `<!-- NAME -->` and `<!-- /NAME -->`, for each table and for "`name` claims". Return
    the figures. Raises ConfigError unless each mark is there once.
    """
    text = page.read_text(encoding="utf-8")
    # In the document, a table's title is its section's heading.
    blocks = {t.name: markdown(t).partition("\n\n")[2] for t in output.tables}
    if output.checks:
        claims = [f"| {c.claim} | {c.verdict} |" for c in output.checks]
        blocks[f"{name} claims"] = "\n".join(["| claim | holds |", "|---|---|", *claims])
    for block, found in blocks.items():
        begin, end = f"<!-- {block} -->\n", f"<!-- /{block} -->"
        before, _, rest = text.partition(begin)
        old, closed, after = rest.partition(end)
        if not closed or begin in old + after:
            raise ConfigError(f"{page}: must have one place for {block}: {begin.strip()} … {end}")
        text = f"{before}{begin}{found.strip()}\n{end}{after}"
    page.write_text(text, encoding="utf-8")
    return save(Output((), output.pictures), figures or page.parent, vector=False)


def markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and note."""
    lines = [
        f"**{table.title}**",
        "",
        "| " + " | ".join(c.name for c in table.columns) + " |",
        "|" + "|".join("---" if i == 0 else "---:" for i in range(len(table.columns))) + "|",
    ]
    lines += ["| " + " | ".join(_cells(table, row)) + " |" for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _cells(table: Table, row: tuple[Any, ...]) -> list[str]:
    return [column.show(cell) for column, cell in zip(table.columns, row, strict=True)]


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_keys(table))
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def _save_picture(picture: Picture, directory: Path, vector: bool) -> list[Path]:
    # Here, not above: matplotlib takes half a second to import, and tables do not need it.
    import matplotlib as mpl  # noqa: PLC0415 - as said above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as said above

    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    written = []
    for suffix in (".png", ".svg") if vector else (".png",):
        path = directory / f"{picture.name}{suffix}"
        # Without a date and with fixed ids, the same run gives the same file.
        with mpl.rc_context({"svg.hashsalt": picture.name, "svg.fonttype": "none"}):
            nothing = {"Date": None} if suffix == ".svg" else None
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix[1:], dpi=DPI, metadata=nothing)
        file_edit.output(path, drawn.getvalue())
        written.append(path)
    return written

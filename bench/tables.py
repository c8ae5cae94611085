"""The tables that benchmarks print."""

from rich.table import Column, Table


def new_table(title: str, *columns: str, words: int = 1, caption: str | None = None) -> Table:
    """Return a table without rows: its first `words` columns are text, the others figures."""
    headers = [
        Column(name, justify="left" if i < words else "right") for i, name in enumerate(columns)
    ]
    return Table(*headers, title=title, caption=caption)

"""A bar on standard error, where that is a terminal: standard output is for results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[float, float], None]
"""Takes what is done and what there is to do."""


@contextmanager
def progress(name: str, *, counts: bool = True) -> Iterator[OnProgress]:
    """Show a bar until the block ends; nothing where nobody would see it move.

    `counts`: in whole steps of the caller's, which are shown; else as a percentage.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counts else TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

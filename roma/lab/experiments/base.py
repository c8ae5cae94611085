"""Definition of an experiment: a name, a question, and a function from a lab to its output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roma.lab.experiments.lab import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `form` is a format specification for its numbers, None is shown as a dash."""

    name: str
    form: str = ""

    def show(self, cell: Cell) -> str:
        """Return a cell as text."""
        if cell is None:
            return "–"
        return cell if isinstance(cell, str) else format(cell, self.form)


def figure_columns(name: str) -> tuple[Column, ...]:
    """Return the columns of a summary's `figures`."""
    late, cores = Column(f"{name}: late", ".2%"), Column("core-s", ".0f")
    return late, Column("±", ".2%"), cores, Column("±", ".0f")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw numbers; the note gives their meaning and computation."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, drawn when it is saved; `size` in inches."""

    name: str
    draw: Callable[["Figure"], None]
    size: tuple[float, float] = (10.0, 6.0)


@dataclass(frozen=True, slots=True)
class Check:
    """A claim and this run's verdict on it; an aim is only reported, and no document claims it."""

    claim: str
    holds: bool
    is_aim: bool = False

    @property
    def verdict(self) -> str:
        """The verdict in the words of the documents."""
        if self.is_aim:
            return "aim reached" if self.holds else "aim missed"
        return "yes" if self.holds else "**no**"


@dataclass(frozen=True, slots=True)
class Output:
    """The results of an experiment."""

    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def refuted(self) -> tuple[Check, ...]:
        """The claims that this run refutes; a missed aim refutes nothing."""
        return tuple(check for check in self.checks if not check.holds and not check.is_aim)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question; `seeds` is the default number of runs that its answer is averaged over."""

    name: str
    question: str
    run: Callable[[Lab], Output]
    seeds: int = 3

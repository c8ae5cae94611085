"""What an experiment is: a name, a question, and a function from a lab to tables and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw numbers; the note says what they mean and how they were computed."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Drawn when it is saved; `size` in inches."""

    name: str
    draw: Callable[["Figure"], None]
    size: tuple[float, float] = (10.0, 6.0)


@dataclass(frozen=True, slots=True)
class Check:
    """A claim and whether this run bears it out; an aim is reported, and no document says it."""

    claim: str
    holds: bool
    is_aim: bool = False

    @property
    def verdict(self) -> str:
        """The verdict as documents have it."""
        if self.is_aim:
            return "aim reached" if self.holds else "aim missed"
        return "yes" if self.holds else "**no**"


@dataclass(frozen=True, slots=True)
class Output:
    """What an experiment found."""

    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...] = ()
    checks: tuple[Check, ...] = field(default=())

    @property
    def refuted(self) -> tuple[Check, ...]:
        """The claims that this run does not bear out; a missed aim refutes nothing."""
        return tuple(check for check in self.checks if not check.holds and not check.is_aim)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question; `seeds` is how many runs its answer is averaged over by default."""

    name: str
    question: str
    run: Callable[[Lab], Output]
    seeds: int = 3

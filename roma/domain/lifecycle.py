"""Life cycles as tables: every legal step is listed; any other step raises, changing nothing."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NoReturn, TypeVar

from roma.domain.errors import InvalidTransition

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class LifeCycle(dict[tuple[S, E], S], Generic[S, E]):
    """A named transition table: `table[state, step]` is the next state, or raises.

    A plain look-up, because each request makes several; `step` gives cheaper look-ups for the steps
    that every request makes. The diagrams in `docs/architecture.md` are generated from these
    tables.
    """

    def __init__(self, name: str, table: Mapping[tuple[S, E], S]) -> None:
        super().__init__(table)
        self.name = name

    def __missing__(self, key: tuple[S, E]) -> NoReturn:
        state, step = key
        legal = ", ".join(sorted(e for s, e in self if s == state)) or "none"
        raise InvalidTransition(
            f"{self.name}: step {step!s} is illegal in state {state!s} (legal: {legal})"
        )

    def step(self, step: E) -> "Step[S, E]":
        """Return the part of the table for one step."""
        return Step(self, step)

    def mermaid(self) -> str:
        """Return the table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2"]
        lines += [f"    {s} --> {target}: {e}" for (s, e), target in self.items()]
        return "\n".join(lines)


class Step(dict[S, S], Generic[S, E]):
    """A step of a life cycle: `step[state]` is the next state, or raises."""

    def __init__(self, cycle: LifeCycle[S, E], step: E) -> None:
        super().__init__({state: after for (state, by), after in cycle.items() if by == step})
        self._cycle = cycle
        self._step = step

    def __missing__(self, state: S) -> S:
        return self._cycle[state, self._step]

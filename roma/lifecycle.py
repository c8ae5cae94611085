"""Life cycles as tables: every legal step is listed, every other one raises and changes nothing."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from roma.errors import InvalidTransition

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class LifeCycle(Generic[S, E]):
    """A named transition table; the diagrams in `docs/architecture.md` are generated from it."""

    def __init__(self, name: str, table: Mapping[tuple[S, E], S]) -> None:
        self.name = name
        self.table = dict(table)

    def next(self, subject: object, state: S, step: E) -> S:
        """Return the state after `step`, or raise `InvalidTransition` naming the subject."""
        try:
            return self.table[state, step]
        except KeyError:
            legal = ", ".join(sorted(e for s, e in self.table if s == state)) or "none"
            raise InvalidTransition(
                f"{self.name} {subject}: step {step!s} is illegal in state {state!s} "
                f"(legal: {legal})"
            ) from None

    def mermaid(self) -> str:
        """Return the table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2"]
        lines += [f"    {s} --> {target}: {e}" for (s, e), target in self.table.items()]
        return "\n".join(lines)

"""Recent usage of an executable: periods with their average cores, newest first, no clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Used:
    """A control period: its length in seconds and the cores used in it on average."""

    dt: float
    cores: float


History = tuple[Used, ...]
"""Newest first."""


def remember(history: History, newest: Used, span: float) -> History:
    """Return the history with `newest`, without the periods that lie before the last `span` s.

    A period counts where its middle lies, so a tick that is a millisecond late drops or keeps none.
    The newest always stays.
    """
    kept, age = [newest], newest.dt
    for used in history:
        if age + used.dt / 2 >= span:
            break
        kept.append(used)
        age += used.dt
    return tuple(kept)


def length(history: History) -> float:
    """Return the seconds that a history covers."""
    return sum(used.dt for used in history)


def mean(history: History) -> float:
    """Return the cores used on average over a history that is not empty."""
    return sum(used.dt * used.cores for used in history) / length(history)

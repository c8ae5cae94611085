"""The value of an answer: its variant's accuracy times its remaining value in time.

    Q = κ · V(end, soft, hard)        (Fang et al., CIKM 2017, eq. 1)

V is 1 until the soft deadline and 0 from the hard one on; `Utility` defines the fall between them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from roma.domain.model import ModelSpec, Request

Utility = Callable[[float], float]
"""The value of an answer that used up a share x in [0, 1) of the time from soft to hard deadline;
it never grows with x."""


def linear(x: float) -> float:
    """Fall linearly (Fig. 2)."""
    return 1.0 - x


def step(_: float) -> float:
    """Fall to nothing at the soft deadline."""
    return 0.0


def convex(x: float) -> float:
    """Fall quickly at first: most of the value is lost soon after the soft deadline."""
    return (1.0 - x) ** 2


UTILITIES: Final[Mapping[str, Utility]] = {"linear": linear, "step": step, "convex": convex}
"""Utilities by their names in `scheduling.quality.utility`."""


def value(utility: Utility, ended: float, soft: float, hard: float) -> float:
    """Return V: the remaining value of an answer at `ended`, from 0 to 1."""
    if ended <= soft:
        return 1.0
    if ended >= hard:
        return 0.0
    return utility((ended - soft) / (hard - soft))


def soft_deadline(request: Request, spec: ModelSpec) -> float:
    """Return the end of an answer's full value: the client's own soft deadline, or the promise."""
    terms = request.terms
    if terms is not None and terms.soft is not None:
        return min(terms.soft, request.deadline)
    return min(request.arrived + spec.sla.response_time, request.deadline)

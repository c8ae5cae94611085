"""What an answer is worth: its variant's accuracy times what is left of its value in time.

    Q = κ · V(end, soft, hard)        (Fang et al., CIKM 2017, eq. 1)

V is 1 until the soft deadline and 0 from the hard one on; `Utility` says how it falls between them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from roma.config.policy_file import Policy
from roma.domain.model import ModelSpec, Request

Utility = Callable[[float], float]
"""The value of an answer that used up a share x in [0, 1) of the time from soft to hard deadline;
it never grows with x."""


def linear(x: float) -> float:
    """Fall evenly (Fig. 2)."""
    return 1.0 - x


def step(_: float) -> float:
    """Be worth nothing after the soft deadline."""
    return 0.0


def convex(x: float) -> float:
    """Fall quickly at first: most of the value is lost soon after the soft deadline."""
    return (1.0 - x) ** 2


UTILITIES: Final[Mapping[str, Utility]] = {"linear": linear, "step": step, "convex": convex}
"""By its name in `scheduling.quality.utility`."""


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What `scheduling.quality:` of roma.yaml says to the policies that choose variants.

    `utility` names what a late answer is worth (see `dispatcher.state.utility`), `bin` is Δt of the
    deadlines' bins in seconds. `alpha` weighs the requests that will come against those that wait,
    `beta` scales both (eq. 2).
    """

    utility: str = "linear"
    alpha: float = 0.5
    beta: float = 0.5
    bin: float = 0.2
    policy: Policy | None = None
    """What `qos-rl` learned."""


def value(utility: Utility, ended: float, soft: float, hard: float) -> float:
    """Return V: what is left of an answer's value at `ended`, from 0 to 1."""
    if ended <= soft:
        return 1.0
    if ended >= hard:
        return 0.0
    return utility((ended - soft) / (hard - soft))


def soft_deadline(request: Request, spec: ModelSpec) -> float:
    """Return until when an answer has its full value: the client's own word, or the promise."""
    terms = request.terms
    if terms is not None and terms.soft is not None:
        return min(terms.soft, request.deadline)
    return min(request.arrived + spec.sla.response_time, request.deadline)

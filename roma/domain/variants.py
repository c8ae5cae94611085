"""Variants of a model, and what a client may ask of the quality of its answer.

Not among the compiled modules: simulations are sent to other processes with these in them, and
compiled classes that nobody may change cannot be.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several versions of a model: executables have it under a name of its own.

    `accuracy` is κ in (0, 1], what one of its answers is worth when it is in time.
    """

    name: str
    accuracy: float


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a client asks of the quality of an answer, beyond what its model has for all.

    `soft` is the point on the core's clock until which an answer has its full value; `variant` the
    one that shall serve it, `accuracy` the least that one may have.
    """

    soft: float | None = None
    variant: str | None = None
    accuracy: float = 0.0

    def allows(self, variant: Variant) -> bool:
        """Return whether a variant may serve the request."""
        return variant.accuracy >= self.accuracy and self.variant in (None, variant.name)

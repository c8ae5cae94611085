"""Variants of a model, and request options on the quality of an answer.

Not among the compiled modules: simulations that hold these are pickled to other processes, and
frozen compiled classes cannot be pickled.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several versions of a model; executables hold it under its own name.

    `accuracy` is κ in (0, 1], the value of one of its answers if it is in time.
    """

    name: str
    accuracy: float


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a request on the quality of its answer, beyond its model's defaults.

    `soft` is the point on the core's clock until which an answer has its full value. `variant`
    names the variant that must serve it; `accuracy` is the lowest accuracy that this variant may
    have.
    """

    soft: float | None = None
    variant: str | None = None
    accuracy: float = 0.0

    def allows(self, variant: Variant) -> bool:
        """Return whether a variant may serve the request."""
        return variant.accuracy >= self.accuracy and self.variant in (None, variant.name)

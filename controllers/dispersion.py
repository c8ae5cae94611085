"""The dispersion of arrivals: variance over mean of the requests in a span of time.

1 is Poisson's; requests that come n at a time have n. The variance of independent counts is the
mean of -Δ·Δ' over successive differences: a span that differs from both its neighbours counts, a
step of the rate does not.
"""

from dataclasses import dataclass
from typing import Final

SPAN: Final = 0.19
"""Least length of a span, in seconds: a tick that comes early cuts in two what arrives at once."""

MEMORY: Final = 20.0
"""Seconds over which spans are compared."""

LARGEST: Final = 16.0
"""Most dispersion that one span adds. More that come at once count as so many."""

CLEAR: Final = 3.0
"""Dispersion from which arrivals are not taken for Poisson's."""

FEW: Final = 0.5
"""Requests, faded in a silence, that tell nothing any more."""


@dataclass(slots=True, init=False)  # as `roma.domain.model.Request`: one in every tick
class Dispersion:
    """`count` requests in the `seconds` of an unfinished span, after one with `last` requests/s.

    That one took `span` seconds, and `change` is by how much it differed from the one before it.
    `squares` sums the products of successive differences, `counts` the requests: what `squares`
    would be if they were Poisson's.
    """

    count: float
    seconds: float
    last: float
    span: float
    change: float
    squares: float
    counts: float

    def __init__(
        self,
        count: float = 0.0,
        seconds: float = 0.0,
        last: float = 0.0,
        span: float = 0.0,
        *,
        change: float = 0.0,
        squares: float = 0.0,
        counts: float = 0.0,
    ) -> None:
        self.count = count
        self.seconds = seconds
        self.last = last
        self.span = span
        self.change = change
        self.squares = squares
        self.counts = counts

    def update(self, count: float, dt: float) -> "Dispersion":
        """Return the dispersion after a period of `dt` seconds with `count` requests."""
        count, seconds = self.count + count, self.seconds + dt
        squares, counts, change = self.squares, self.counts, self.change
        if seconds < SPAN:
            return Dispersion(
                count, seconds, self.last, self.span, change=change, squares=squares, counts=counts
            )
        rate = count / seconds
        if counts <= FEW:  # Poisson's, as if for all of the memory, until spans say otherwise
            counts = squares = rate * MEMORY
            return Dispersion(0.0, 0.0, rate, seconds, squares=squares, counts=counts)
        change, kept = rate - self.last, max(0.0, 1 - seconds / MEMORY)
        # Changes are correlated by the span between them, whose rate varies by D·λ / its length.
        square = -change * self.change * seconds * self.span
        most = LARGEST * max(rate, self.last) * seconds
        squares = squares * kept + max(-most, min(square, most))
        counts = counts * kept + (rate + self.last) / 2 * seconds
        return Dispersion(0.0, 0.0, rate, seconds, change=change, squares=squares, counts=counts)

    @property
    def excess(self) -> float:
        """d: the dispersion less two, and 1 at least, since few spans may show three by chance."""
        return max(1.0, self.squares / self.counts + 1 - CLEAR) if self.counts > FEW else 1.0

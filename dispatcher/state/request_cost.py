"""Costs of large requests relative to a model's usual ones, learnt from their bytes.

A batch of thousands of instances holds a slot for as long as thousands of requests would, and a
running computation cannot be preempted. So the time of a request must be known before it runs, from
the only visible property of an opaque body: its size.

Sizes are grouped by octave: those of one octave differ by at most a factor of two. The octave of
the median answered request is the usual one, and a request that is not larger is not examined. For
other octaves the work per byte of the last nine requests is kept. The second largest counts: one
stall is no measure, and cheap requests do not hide expensive ones. Sizes that were never measured
are assumed to cost as much per byte as the next smaller known ones. That is too much wherever a
request has a fixed cost, so a request that would be refused for it runs occasionally as a trial.
"""

from collections import deque
from typing import Final

OCTAVES: Final = 33
"""Number of octaves: bodies have less than 4 GiB."""

RECENT: Final = 128
"""Answers that determine the usual octave; beyond that each counts for half."""

SAMPLES: Final = 9
"""Requests of one octave that determine its cost."""

TRIAL_SHARE: Final = 0.002
"""Share of the time spent on trials of requests that would be refused, to learn whether they
should: no more than one in 500 other requests meets one."""

LONGEST_WAIT: Final = 600.0
"""Longest time in seconds until a size that was never measured is tried."""


class Sizes:
    """The usual request sizes of a model: `lower` <= bytes < `upper`, at first none."""

    __slots__ = ("_counts", "_last_trial", "_total", "lower", "upper", "usual")

    def __init__(self) -> None:
        self.lower = self.upper = 0
        self.usual = 0
        """Answers of usual size that are not in the counts yet."""
        self._counts = [0] * OCTAVES
        """Recent answers by octave."""
        self._total = 0
        """Their sum."""
        self._last_trial = -1.0
        """On the core's clock; negative before anything was answered."""

    def note(self, size: int, now: float) -> bool:
        """Record an unusual request that was answered; return True if the usual octave changed."""
        counts, before = self._counts, self.upper
        if self._last_trial < 0:
            self._last_trial = now
        counts[max(0, before.bit_length() - 1)] += self.usual
        counts[size.bit_length()] += 1
        total = self._total + self.usual + 1
        self.usual = 0
        while total > RECENT:
            for i in range(OCTAVES):
                counts[i] //= 2
            total = sum(counts)
        self._total = total
        below = octave = 0
        while 2 * (below + counts[octave]) < total:
            below += counts[octave]
            octave += 1
        self.lower, self.upper = (1 << octave) >> 1, 1 << octave
        return self.upper != before

    def is_trial(self, predicted: float, now: float, *, is_measured: bool) -> bool:
        """Return True if a request that would be refused runs as a trial (`predicted` seconds)."""
        wait = predicted / TRIAL_SHARE
        if now - self._last_trial < (wait if is_measured else min(wait, LONGEST_WAIT)):
            return False
        self._last_trial = now
        return True


class LargeCosts:
    """Core-seconds per byte of one model's large requests on one executor, by octave.

    In every method `usual` is the cost of a usual request there, in core-seconds, and `upper` the
    end of the usual sizes, in bytes.
    """

    __slots__ = ("_known", "_rates")

    def __init__(self) -> None:
        self._known: dict[int, deque[float]] = {}
        """Work per byte of the last requests, by octave."""
        self._rates = [0.0] * OCTAVES
        """The rate that counts for each octave, 0 where nothing was measured."""

    def record(self, size: int, work: float, *, usual: float, upper: int) -> None:
        """Record the cost of a large request."""
        octave = size.bit_length()
        known = self._known.get(octave)
        if known is None:
            known = self._known[octave] = deque(maxlen=SAMPLES)
        known.append(work / size)
        if len(known) == 1:
            self._rates[octave] = min(known[0], self._rate(octave - 1, usual, upper))
        else:
            self._rates[octave] = sorted(known)[-2]

    def keep(self, size: int, work: float) -> None:
        """Keep the cost of a size that is no longer usual."""
        self._rates[size.bit_length()] = work / size

    def is_measured(self, size: int) -> bool:
        """Return True if requests of a size were measured, not only estimated from others."""
        return self._rates[size.bit_length()] > 0

    def forget(self, size: int) -> None:
        """Drop what is known of a size; the next request of that size is measured anew."""
        self._known.pop(size.bit_length(), None)

    def of(self, size: int, *, usual: float, upper: int) -> float:
        """Return the predicted core-seconds of a large request."""
        octave, rates = size.bit_length(), self._rates
        predicted = self._rate(octave, usual, upper) * size
        if not rates[octave]:
            for larger in range(octave + 1, OCTAVES):
                if rates[larger]:  # nor does it take longer than a larger one
                    return min(predicted, rates[larger] * (1 << larger))
        return predicted

    def largest(self, work: float, at_least: int, *, usual: float, upper: int) -> int:
        """Return the size up to which requests cost no more than `work`, or `at_least`."""
        fits = at_least
        for octave in range(fits.bit_length(), OCTAVES):
            last = (1 << octave) - 1
            fits = max(fits, min(last, int(work / self._rate(octave, usual, upper))))
            if fits < last:
                break
        return fits

    def _rate(self, octave: int, usual: float, upper: int) -> float:
        """Return the work per byte of an octave, or of the next lower known one."""
        rate = usual / upper
        for smaller in range(upper.bit_length() - 1, octave + 1):
            rate = self._rates[smaller] or rate
        return rate
